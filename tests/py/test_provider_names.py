# SPDX-License-Identifier: Apache-2.0
"""Names of rows, hosts' names for them and classes in require, prefer and forbid: per call, scope, context (D8 to D11)."""

import threading

import pytest

torch = pytest.importorskip("torch")

import fake_device  # noqa: E402
import rapt  # noqa: E402
import rapt.torch  # noqa: E402
from rapt import _call  # noqa: E402
from test_provider_conventions import SQUARE, stand, tensors  # noqa: E402

DIFFUSERS = """flash flash_hub flash_varlen flash_varlen_hub flash_4_hub _flash_3 _flash_varlen_3 _flash_3_hub
    _flash_3_varlen_hub aiter_fa2_hub flex native _native_cudnn _native_efficient _native_flash _native_math _native_npu
    _native_xla sage sage_hub sage_varlen _sage_qk_int8_pv_fp8_cuda _sage_qk_int8_pv_fp8_cuda_sm90
    _sage_qk_int8_pv_fp16_cuda _sage_qk_int8_pv_fp16_triton xformers""".split()
LATER = ["sage_blackwell_hub"]                                  # of diffusers 0.42


def test_there_are_26_names():
    assert len(set(DIFFUSERS)) == 26


@pytest.mark.parametrize("name", DIFFUSERS + LATER)
@pytest.mark.parametrize("field", ["require", "prefer", "forbid"])
def test_every_diffusers_name_is_accepted_d8(name, field):
    q = torch.rand(1, 2, 4, 16)
    try:
        rapt.torch.explain(q, q, q, **{field: name})
        with rapt.policy(**{field: name}):
            pass
    except rapt.ArgumentError as error:
        pytest.fail(f"{name}: {error}")
    assert _call.what_if("cuda cc=9.0")                          # names hold for every context
    rapt.torch.explain(q.half(), q.half(), q.half(), device="cuda", facts="cuda cc=9.0 torch=2.13.0", **{field: name})


def test_the_names_are_those_that_diffusers_has():
    dispatch = pytest.importorskip("diffusers.models.attention_dispatch")
    names = {member.value for member in dispatch.AttentionBackendName} - {"rapt"}
    assert names == set(DIFFUSERS + LATER)


# One line a name: what it chooses where everything is installed.
_CHOICES = [("fa2", "fa2"), ("flash", "fa2"), ("flash2", "fa2"), ("flash_attention_2", "fa2"), ("_flash_3", "fa3"),
            ("flash3", "fa3"), ("flash4", "fa4"), ("sage", "sage.auto"), ("xformers", "mslk.auto"), ("flex", "flex"),
            ("mslk", "mslk.auto"), ("sage.fp8_sm90", "sage.fp8_sm90"), ("native", "torch.sdpa"), ("torch_sdpa", "torch.sdpa")]


@pytest.mark.parametrize("name, row", _CHOICES)
def test_a_name_chooses_its_row_d8(monkeypatch, name, row):
    stand(monkeypatch, "fa2")
    q, k, v = tensors(SQUARE)
    assert rapt.torch.explain(q, k, v, require=name).row == row
    consent = "torch.sdpa" if row.startswith("sage") else row   # only require consents to what approximates (N7)
    assert rapt.torch.explain(q, k, v, prefer=name).row == consent
    assert rapt.torch.explain(q, k, v, prefer=name, forbid=name).row != row


def test_nothing_of_another_package_is_chosen_unasked_d28(monkeypatch):
    fakes = stand(monkeypatch, "fa2")
    q, k, v = tensors(SQUARE)
    rapt.torch.sdpa(q, k, v)
    report = rapt.last_report()
    assert report.row == "torch.sdpa" and fakes.calls == [] and report.codes("fa2") == ["OPT_IN"]


def test_classes_name_rows_too(monkeypatch):
    fakes = stand(monkeypatch, "fa2")
    q, k, v = tensors(SQUARE)
    out = rapt.torch.sdpa(q, k, v, prefer="class:flash", forbid="class:host")
    assert rapt.last_report().row == "fa3" and out.shape == q.shape         # by rank
    other = rapt.torch.explain(q, k, v, forbid="class:flash", prefer="class:fused,class:approx")
    assert "flash" not in other.json["chosen"]["classes"]
    with pytest.raises(rapt.RefusedError) as caught:
        rapt.torch.sdpa(q, k, v, require="class:approx")        # N7: a class is no consent
    assert "APPROX" in caught.value.report.codes("sage.auto")
    assert len(fakes.calls) == 1


def test_scopes_nest_and_are_this_threads_own_d21(monkeypatch):
    stand(monkeypatch, "fa2")
    q, k, v = tensors(SQUARE)
    rows = []

    def run():
        rapt.torch.sdpa(q, k, v)
        rows.append(rapt.last_report().row)

    with rapt.policy(prefer="fa2"):
        run()
        with rapt.policy(prefer="sage"):                         # by name, and still approximate: prefer is no consent
            run()
        with rapt.policy(forbid="fa2"):
            run()
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        run()
    run()
    assert rows == ["fa2", "torch.sdpa", "torch.sdpa", "torch.sdpa", "fa2", "torch.sdpa"]


def test_a_call_goes_before_its_scope_and_bans_add_up_d9(monkeypatch):
    stand(monkeypatch, "fa2")
    q, k, v = tensors(SQUARE)
    with rapt.policy(require="fa3"):
        assert rapt.torch.explain(q, k, v).row == "fa3"
        assert rapt.torch.explain(q, k, v, require="fa2").row == "fa2"
    with rapt.policy(forbid="fa2"), pytest.raises(rapt.RefusedError) as caught:
        rapt.torch.sdpa(q, k, v, require="fa2")
    assert "FORBIDDEN" in caught.value.report.codes("fa2")


def test_the_environment_is_a_level_of_a_context_d23(monkeypatch):
    monkeypatch.setenv("RAPT_PREFER", "fa2")
    stand(monkeypatch, "fa2")
    q, k, v = tensors(SQUARE)
    rapt.torch.sdpa(q, k, v)
    assert rapt.last_report().row == "fa2" and rapt.last_report().decision[3] == "environment"
    rapt.torch.sdpa(q, k, v, prefer="fa3")
    assert rapt.last_report().row == "fa3"


def test_prefer_falls_through_with_reasons_and_require_does_not_d8_d10(monkeypatch):
    fakes = stand(monkeypatch, "fa2")
    q, k, v = tensors(SQUARE, torch.float32)
    out = rapt.torch.sdpa(q, k, v, prefer="fa2")
    report = rapt.last_report()
    assert report.row == "torch.sdpa" and report.codes("fa2") == ["DTYPE"] and out.dtype is torch.float32
    rapt.torch.sdpa(q, k, v, prefer="fa2,xformers")
    assert rapt.last_report().row == "mslk.auto"                 # which takes fp32
    with pytest.raises(rapt.RefusedError):
        rapt.torch.sdpa(q, k, v, require="fa2")
    assert [name for name, _ in fakes.calls] == ["memory_efficient_attention"]


def test_dropout_of_a_packages_own_generator_wants_consent_x7(monkeypatch):
    fakes = stand(monkeypatch, "fa2")
    q, k, v = tensors(SQUARE)
    rapt.torch.sdpa(q, k, v, dropout_p=0.25, require="fa2")
    assert fakes.calls[0][1]["dropout_p"] == 0.25 and "rng" in rapt.last_report().json["chosen"]["consents"]
    assert "RNG" in rapt.torch.explain(q, k, v, dropout_p=0.25, prefer="fa2").codes("fa2")


def test_a_determinism_level_reaches_the_package_n16(monkeypatch):
    fakes = stand(monkeypatch, "fa2")
    q, k, v = tensors(SQUARE)
    rapt.torch.sdpa(q, k, v, require="fa2", determinism="run")
    rapt.torch.sdpa(q, k, v, require="fa2")
    assert [got["deterministic"] for _, got in fakes.calls] == [True, False]
    with pytest.raises(rapt.RefusedError):
        rapt.torch.sdpa(q, k, v, require="fa2", determinism="batch")


def test_rows_for_cuda_say_device_for_cpu_tensors(monkeypatch):
    fakes = fake_device.at_home(monkeypatch)
    q = torch.rand(1, 2, 4, 64, dtype=torch.bfloat16)
    for name in ("fa2", "fa3", "sage", "xformers", "fa4", "sage3"):
        with pytest.raises(rapt.RefusedError) as caught:
            rapt.torch.sdpa(q, q, q, require=name)
        assert "DEVICE" in caught.value.report.codes({"sage": "sage.auto", "xformers": "mslk.auto"}.get(name, name))
    assert fakes.calls == []


# ---- The host's own members ----

@pytest.mark.parametrize("row", ["torch.flash", "torch.efficient", "torch.cudnn"])
def test_the_hosts_members_give_out_and_an_unpadded_lse(row):
    """Their shapes, on meta tensors: no device here runs them (scripts/gpu-check does)."""
    from rapt._torch_host import _OPERATORS
    q = torch.empty(2, 4, 9, 60, dtype=torch.float16, device="meta")
    mask = None if row == "torch.flash" else torch.ones(1, 1, 9, 9, dtype=torch.bool, device="meta")
    out, lse = _OPERATORS[row](q, q, q, mask, 0.0, False, 0.3, False)
    assert out.shape == q.shape and lse.shape == q.shape[:-1] and out.dtype is q.dtype


# ---- Kernels of a hub ----

def test_a_hub_kernel_is_not_there_until_it_is_brought(monkeypatch):
    fakes = fake_device.pretend(monkeypatch)
    q, k, v = tensors(SQUARE)
    with pytest.raises(rapt.RefusedError, match="no provider registered"):
        rapt.torch.sdpa(q, k, v, require="hub.fa3")
    import kernels
    rapt.torch.use_kernel("hub.fa3", kernels.get_kernel("kernels-community/flash-attn3", version=1))
    rapt.torch.sdpa(q, k, v, require="_flash_3_hub")
    assert rapt.last_report().row == "hub.fa3" and len(fakes.calls) == 1


def test_use_kernel_refuses_by_name():
    with pytest.raises(rapt.ArgumentError, match="hub.fa3"):
        rapt.torch.use_kernel("fa3", object())
    with pytest.raises(rapt.ArgumentError, match="flash_attn_func"):
        rapt.torch.use_kernel("hub.fa3", object())


# ---- Where operators decide (compiled graphs, install) ----

def test_a_package_is_never_half_called_by_an_operator(monkeypatch):
    """rapt::sdpa has not all arguments of a package's row, so there prefer passes it over and require refuses it."""
    monkeypatch.setattr(rapt.torch, "context", _call.Context(rapt.torch._register))
    q = torch.rand(1, 2, 8, 16)
    graph = torch.compile(lambda t: rapt.torch.sdpa(t, t, t), backend="eager")
    with rapt.policy(prefer="flex"):
        graph(q)
        assert rapt.last_report().row.startswith("cpu.") and "FORBIDDEN" in rapt.last_report().codes("flex")
        rapt.torch.sdpa(q, q, q)
        assert rapt.last_report().row == "flex"
    with rapt.policy(require="flex"), pytest.raises(RuntimeError, match="FORBIDDEN: flex"):
        graph(q)
