# SPDX-License-Identifier: Apache-2.0
"""SageAttention. Its entries swallow keywords they do not know, so none is sent that they do not have; the results come
back detached, so the rows have no backward."""


def _dense(call, entry, **more):
    result = entry(call.q, call.k, call.v, tensor_layout="HND", is_causal=call.causal, sm_scale=call.scale,
                   return_lse=call.lse, **more)
    return result if call.lse and isinstance(result, tuple) else (result, None)


def auto(call, package):
    return _dense(call, package.sageattn)


def fp16_cuda(call, package):
    return _dense(call, package.sageattn_qk_int8_pv_fp16_cuda)


def triton(call, package):
    """The mask is expanded by the row's limits; rows that it leaves without keys are set by the caller."""
    more = {} if call.mask is None else {"attn_mask": call.mask}
    return _dense(call, package.sageattn_qk_int8_pv_fp16_triton, **more)


def fp8_cuda(call, package):
    return _dense(call, package.sageattn_qk_int8_pv_fp8_cuda)


def fp8_sm90(call, package):
    return _dense(call, package.sageattn_qk_int8_pv_fp8_cuda_sm90)


def varlen(call, package):
    out = package.sageattn_varlen(call.q, call.k, call.v, call.cu_q, call.cu_k, call.max_q, call.max_k,
                                  is_causal=call.causal, sm_scale=call.scale)
    return out, None


def sage3(call, package):
    """k is changed in place there: it gets a copy. No scale, mask or window is taken; the row refuses them."""
    return package.sageattn3_blackwell(call.q, call.k.clone(), call.v, is_causal=call.causal), None


OPERATORS = {
    "sage.auto": auto, "hub.sage": auto, "sage.fp16_cuda": fp16_cuda, "sage.triton": triton, "sage.fp8_cuda": fp8_cuda,
    "sage.fp8_sm90": fp8_sm90, "sage.varlen": varlen, "sage3": sage3,
}
