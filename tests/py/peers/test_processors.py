# SPDX-License-Identifier: Apache-2.0
"""diffusers' attention module under install(): every processor of it that ends in F.scaled_dot_product_attention."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

import rapt  # noqa: E402
import rapt.torch  # noqa: E402
from diffusers.models import attention_processor as processors  # noqa: E402
from torch.nn import functional as F  # noqa: E402

MODULE = dict(query_dim=32, heads=4, dim_head=8)
ADDED = dict(added_kv_proj_dim=48, norm_num_groups=8, bias=True)
CASES = {                               # name: (processor, its plain form, how the module is made, the other stream's width)
    "self": ("AttnProcessor2_0", "AttnProcessor", {}, None),
    "self, norms and upcast": ("AttnProcessor2_0", "AttnProcessor",
                               dict(norm_num_groups=8, residual_connection=True, upcast_softmax=True, bias=True), None),
    "cross": ("AttnProcessor2_0", "AttnProcessor", dict(cross_attention_dim=48), 48),
    "added kv": ("AttnAddedKVProcessor2_0", "AttnAddedKVProcessor", ADDED, 48),
    "added kv, only cross": ("AttnAddedKVProcessor2_0", "AttnAddedKVProcessor", dict(ADDED, only_cross_attention=True), 48),
    "fused projections": ("FusedAttnProcessor2_0", "AttnProcessor", {}, None),
}


def make(case):
    """(module, arguments): the hidden states of an image for added kv, whose processors take no others."""
    torch.manual_seed(5)
    name, _, options, width = CASES[case]
    module = processors.Attention(**MODULE, **options).eval()
    hidden = torch.randn(2, 32, 3, 3) if "Added" in name else torch.randn(2, 9, 32)
    return module, (hidden, None if width is None else torch.randn(2, 7, width))


def run(module, arguments, processor, mask=None):
    module.set_processor(getattr(processors, processor)())
    if "Fused" in processor:
        module.fuse_projections()
    with torch.no_grad():
        return module(*arguments, attention_mask=mask)


def mean_of_values(*arguments, **keywords):
    """The fault: what every query gets where no key counts more than another."""
    return arguments[2].mean(-2, keepdim=True).expand(*arguments[0].shape)


@pytest.mark.parametrize("case", CASES)
def test_a_processor_gives_what_the_plain_one_gives(case, monkeypatch):
    name, plain, *_ = CASES[case]
    module, arguments = make(case)
    want = run(module, arguments, plain)
    before = sum(rapt.torch.context.entered().values())
    with rapt.torch.install():
        got = run(module, arguments, name)
    assert sum(rapt.torch.context.entered().values()) > before
    torch.testing.assert_close(got, want, atol=2e-6, rtol=2e-5)
    monkeypatch.setattr(F, "scaled_dot_product_attention", mean_of_values)
    assert not torch.allclose(run(module, arguments, name), want, atol=1e-4)    # such a fault would have been seen


def test_a_processors_mask_is_added_and_repeated_for_every_head():
    module, arguments = make("self")
    mask = torch.zeros(2, 1, 9)
    mask[0, :, 6:] = mask[1, :, 2:] = -1e4
    want = run(module, arguments, "AttnProcessor", module.prepare_attention_mask(mask, 9, 2))
    with rapt.torch.install():
        got = run(module, arguments, "AttnProcessor2_0", mask)
    torch.testing.assert_close(got, want, atol=2e-6, rtol=2e-5)
    assert rapt.last_report().row.startswith(("cpu.", "ref"))
