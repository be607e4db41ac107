# SPDX-License-Identifier: Apache-2.0
"""Context parallelism of diffusers over rapt, as a program of two processes: each holds half of a sequence.

test_diffusers_choice.py runs it. The whole sequence in one process is the reference; its exact result and bound are oracle_np's,
its gradients the native backend's."""

import os
import tempfile

import oracle_np
import pytest
import rapt
import rapt.diffusers
import torch
import torch.distributed
import torch.multiprocessing
from diffusers import ContextParallelConfig
from diffusers.models._modeling_parallel import ParallelConfig
from diffusers.models.attention_dispatch import dispatch_attention_fn as attend
from torch.distributed.device_mesh import init_device_mesh

B, S, H, D = 2, 12, 4, 8


def numpy(tensor):
    return tensor.detach().transpose(1, 2).to(torch.float64).numpy()


def configured(rank, **degrees):
    config = ContextParallelConfig(**degrees)
    mesh = init_device_mesh("cpu", mesh_shape=config.mesh_shape, mesh_dim_names=config.mesh_dim_names)
    parallel = ParallelConfig(context_parallel_config=config)
    parallel.setup(rank, 2, torch.device("cpu"), mesh=mesh)
    return parallel


def half(rank, tensor, axis=1):
    return tensor.chunk(2, axis)[rank].contiguous()


def check_values(rank, parallel, times):
    """Output and log-sum-exp in fp32; times: a ring's merges add their own share (N9)."""
    q, k, v = (torch.rand(B, S, H, D) * 2 - 1 for _ in range(3))
    local = [half(rank, t) for t in (q, k, v)]
    out, lse = attend(*local, backend="rapt", parallel_config=parallel, attention_kwargs={"return_lse": True})
    o, want, bound, bound_lse = oracle_np.attention(*map(numpy, (q, k, v)))
    rows = slice(rank * S // 2, (rank + 1) * S // 2)
    oracle_np.check(numpy(out), o[:, :, rows], bound[:, :, rows], times=times)
    assert lse.shape == (B, S // 2, H) and lse.dtype is torch.float32
    oracle_np.check(numpy(lse[..., None])[..., 0], want[:, :, rows], bound_lse[:, :, rows], times=times)
    assert torch.equal(attend(*local, backend="rapt", parallel_config=parallel), out)


def check_autocast(rank, parallel):
    """Mixed operands are cast before they are sent, and the result is as cast beforehand (A9)."""
    q, k, v = (torch.randn(B, S // 2, H, D) for _ in range(3))
    with torch.autocast("cpu"):
        out = attend(q, k, v.bfloat16(), backend="rapt", parallel_config=parallel)
    assert out.dtype is torch.bfloat16
    assert torch.equal(out, attend(*(t.bfloat16() for t in (q, k, v)), backend="rapt", parallel_config=parallel))
    with pytest.raises(rapt.ArgumentError, match="^DTYPE_MIX"):
        attend(q, k, v.bfloat16(), backend="rapt", parallel_config=parallel)


def check_gradients(rank, parallel, mask=None):
    """Both processes' backward against the native one over the whole sequence, in fp64. What is left of rounding is that
    of the log-sum-exp, which is fp32: a factor 1 + e on every weight (N13), in the result of the ring as well."""
    q, k, v, up = (torch.randn(B, S, H, D, dtype=torch.float64) for _ in range(4))
    whole = [t.clone().requires_grad_() for t in (q, k, v)]
    attend(*whole, attn_mask=mask, backend="native").backward(up)
    local = [half(rank, t).requires_grad_() for t in (q, k, v)]
    part = None if mask is None else half(rank, mask)
    attend(*local, attn_mask=part, backend="rapt", parallel_config=parallel).backward(half(rank, up))
    for mine, all_, bound in zip(local, whole, gradient_bounds(q, k, v, up, mask)):
        assert not ((mine.grad - half(rank, all_.grad)).abs() > half(rank, bound.transpose(1, 2))).any()


def gradient_bounds(q, k, v, up, mask):
    """What e does to dq, dk, dv: N14 with nothing else in it."""
    q, k, v, up = (t.transpose(1, 2) for t in (q, k, v, up))
    logits = q @ k.mT * D**-0.5
    if mask is not None:
        logits = logits.masked_fill(~mask[:, None, None], float("-inf"))
    e = 3 * 8 * 2.0**-24 * (1 + float(torch.logsumexp(logits, -1).abs().max()))         # two parts and their merge
    weights = torch.softmax(logits, -1)
    delta = (up * (weights @ v)).sum(-1, keepdim=True)
    slack = (up.abs() * (weights @ v.abs())).sum(-1, keepdim=True)
    scores = e * weights * ((up @ v.mT - delta).abs() + slack) * D**-0.5
    return scores @ k.abs(), scores.mT @ q.abs(), e * (weights.mT @ up.abs())


def check_masks(rank, parallel):
    q, k, v = (torch.rand(B, S, H, D) * 2 - 1 for _ in range(3))
    mask = torch.arange(S) < torch.tensor([[9], [11]])
    bias = torch.where(mask, 0.0, float("-inf")) + torch.rand(B, S)
    rows = slice(rank * S // 2, (rank + 1) * S // 2)
    for name, given in (("mask", mask), ("bias", bias)):
        o, _, bound, _ = oracle_np.attention(*map(numpy, (q, k, v)), **{name: given[:, None, None].numpy()})
        for part in (half(rank, given), half(rank, given)[:, None, None]):
            out = attend(*(half(rank, t) for t in (q, k, v)), attn_mask=part, backend="rapt", parallel_config=parallel)
            oracle_np.check(numpy(out), o[:, :, rows], bound[:, :, rows])


def check_refusals(rank, ring, ulysses, anything):
    """Each by its own name, in both processes alike, so that none waits for the other."""
    q = torch.randn(B, S // 2, H, D)
    narrow, wants = q[:, :, :2], q.clone().requires_grad_()
    mask = torch.ones(B, S // 2, dtype=torch.bool)

    def refused(name, parallel, *operands, **kw):
        with pytest.raises(rapt.ArgumentError) as caught:
            attend(*(operands or (q, q, q)), backend="rapt", parallel_config=parallel, **kw)
        assert caught.value.field == name, caught.value

    for parallel in (ring, ulysses):
        refused("dropout_p", parallel, dropout_p=0.1)
        refused("is_causal", parallel, is_causal=True)
        refused("enable_gqa", parallel, enable_gqa=True)
        refused("key", parallel, q, narrow, narrow)
        refused("window_size", parallel, attention_kwargs={"window_size": (1, 1)})
        refused("return_lse", parallel, wants, q, q, attention_kwargs={"return_lse": True})
        refused("softcap", parallel, attention_kwargs={"softcap": 1.0})
    refused("attn_mask", ring, attn_mask=mask)
    refused("attn_mask", ulysses, attn_mask=mask[:, None, :, None] & mask[:, None, None])
    refused("attn_mask", ulysses, attn_mask=torch.zeros(B, S // 2, requires_grad=True))
    for parallel in anything:
        refused("_parallel_config", parallel, wants, q, q)


def work(rank, path):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    torch.manual_seed(3)                        # the same tensors in both
    ring, ulysses = configured(rank, ring_degree=2), configured(rank, ulysses_degree=2)
    exact = configured(rank, ring_degree=2, convert_to_fp32=False)
    anything = (configured(rank, ring_degree=2, ring_anything=True), configured(rank, ulysses_degree=2, ulysses_anything=True))
    for name, parallel in (("ring", ring), ("ulysses", ulysses), ("ring_anything", anything[0]),
                           ("ulysses_anything", anything[1])):
        check_values(rank, parallel, 3.0 if "ring" in name else 1.0)
        check_autocast(rank, parallel)
        if "anything" not in name:
            check_gradients(rank, exact if name == "ring" else parallel)
        if "ulysses" in name:
            check_masks(rank, parallel)
        if name == "ulysses":
            check_gradients(rank, parallel, torch.arange(S) < torch.tensor([[9], [11]]))
        os.write(1, f"{name}\n".encode())       # in one piece: two processes share the stream
    check_refusals(rank, ring, ulysses, anything)
    os.write(1, b"refusals\n")
    torch.distributed.barrier()                 # neither hangs up while the other still talks
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(work, args=(os.path.join(folder, "meet"),), nprocs=2, start_method="spawn")
