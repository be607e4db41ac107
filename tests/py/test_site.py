# SPDX-License-Identifier: Apache-2.0
"""Attention sites: wrappers over one package, preferences, report lines and counters (7.3)."""

import copy
import gc
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import weakref

import numpy as np
import oracle_np
import pytest

torch = pytest.importorskip("torch")

import rapt  # noqa: E402
import rapt.torch  # noqa: E402
from rapt import _call, _site, _torch_request  # noqa: E402
from test_site_wan import FA2, blnc, row, rows, wan  # noqa: E402, F401


# ---- Wrappers: (q, k, v[, mask]), and packed heads ----

def reference(q, k, v, **options):
    out = torch.nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), **options)
    return out.transpose(1, 2)


def test_bshd_equals_the_hosts_function(rows):
    q, k, v = blnc((2, 5, 4, 16), (2, 7, 4, 16), (2, 7, 4, 16))
    site = rapt.torch.attention_site("ActionDiT", layout="bshd")
    mask = torch.rand(2, 1, 5, 7) > 0.4
    mask[..., 0] = True
    for keywords in ({}, {"mask": mask}, {"mask": torch.rand(4, 5, 7)}):
        options = {"attn_mask": keywords["mask"]} if keywords else {}
        torch.testing.assert_close(site(q, k, v, **keywords), reference(q, k, v, **options), atol=2e-6, rtol=1e-5)
        assert site(q, k, v, *keywords.values()).shape == q.shape
    torch.testing.assert_close(site(q, k[:, :, :2], v[:, :, :2], scale=0.1),
                               reference(q, k[:, :, :2], v[:, :, :2], enable_gqa=True, scale=0.1), atol=2e-6, rtol=1e-5)


def test_bhsd_and_packed_heads_are_the_same_call():
    q, k, v = blnc((2, 5, 4, 16), (2, 7, 4, 16), (2, 7, 4, 16))
    want = rapt.torch.attention_site("a", layout="bshd")(q, k, v)
    bhsd = rapt.torch.attention_site("b", layout="bhsd")(*(t.transpose(1, 2) for t in (q, k, v)))
    packed = rapt.torch.attention_site("c", layout="bs(hd)")(*(t.flatten(2) for t in (q, k, v)), 4)
    named = rapt.torch.attention_site("c", layout="bs(hd)")(*(t.flatten(2) for t in (q, k, v)), num_heads=4)
    assert torch.equal(bhsd.transpose(1, 2), want) and torch.equal(packed.unflatten(-1, (4, 16)), want)
    assert torch.equal(named, packed) and packed.is_contiguous()


def test_a_wrappers_gradients_are_the_hosts():
    for layout, shape in (("bshd", (2, 5, 4, 16)), ("bs(hd)", (2, 5, 64))):
        site = rapt.torch.attention_site("ActionDiT", layout=layout, prefer="fa2,xformers", otherwise="torch.sdpa")
        q, k, v = (t.requires_grad_() for t in blnc(shape, shape, shape))
        out = site(q, k, v, *([4] if layout == "bs(hd)" else []))
        got = torch.autograd.grad(out.square().sum(), (q, k, v))
        again = [t.detach().clone().requires_grad_() for t in (q, k, v)]
        want = torch.autograd.grad(reference(*(t.view(2, 5, 4, 16) for t in again)).square().sum(), again)
        for g, w in zip(got, want):
            torch.testing.assert_close(g, w)
        assert site.entered() == {"torch.sdpa": 1}


def test_compatibility_mode_runs_the_hosts_operator():
    site = rapt.torch.attention_site("Video DiT", layout="bs(hd)", prefer="cpu")
    q = blnc((1, 5, 64))[0]
    site(q, q, q, 4)
    assert row().startswith("cpu.")
    site(q, q, q, 4, True)
    assert row() == "torch.sdpa" and site.explain(q, q, q, 4, compatibility_mode=True).row == "torch.sdpa"
    with rapt.policy(prefer="ref"):
        site(q, q, q, num_heads=4, compatibility_mode=True)
    assert row() == "torch.sdpa"


def test_lse_comes_as_the_host_has_it():
    q, k, v = blnc((2, 5, 4, 16), (2, 7, 4, 16), (2, 7, 4, 16))
    _, want, _, _ = oracle_np.attention(*(t.numpy().swapaxes(1, 2) for t in (q, k, v)))
    for layout, operands in (("bshd", (q, k, v)), ("bs(hd)", (*(t.flatten(2) for t in (q, k, v)), 4))):
        out, lse = rapt.torch.attention_site("x", layout=layout)(*operands, return_lse=True)
        assert out.shape == operands[0].shape
        np.testing.assert_allclose(lse.numpy(), want, atol=1e-5)


def test_a_wrappers_wrong_calls_name_its_arguments():
    q, k, v = blnc((2, 5, 4, 16), (2, 7, 4, 16), (2, 7, 4, 16))
    site = rapt.torch.attention_site("x", layout="bshd")
    packed = rapt.torch.attention_site("x", layout="bs(hd)")
    p = q.flatten(2)
    cases = [(lambda: site(q, k.half(), v), "DTYPE_MIX", "q,k,v"),
             (lambda: site(q, k, v, torch.rand(3, 3) > 0), "SHAPE", "mask"),
             (lambda: site(q, k, v, torch.rand(3, 3)), "SHAPE", "mask"),
             (lambda: site(q, k, v, torch.rand(5, 7).double()), "BIAS", "mask"),
             (lambda: site(q, k, v, torch.rand(5, 7), bias=torch.rand(5, 7)), "UNKNOWN_FIELD", "mask"),
             (lambda: site(q, k, v, masked=1), "UNKNOWN_FIELD", "masked"),
             (lambda: site(q, k, v, prefer="nobody"), "UNKNOWN_NAME", "prefer"),
             (lambda: site(q, k, v, torch.ones(5, 7, dtype=torch.int32)), "MASK", "mask"),
             (lambda: packed(p, p, p, 5), "HEADS", "q"), (lambda: packed(p, p, p, 0), "HEADS", "num_heads"),
             (lambda: packed(p, p, p, True), "HEADS", "num_heads"), (lambda: packed(p, p[..., :32], p, 4), "SHAPE", "k"),
             (lambda: packed(p, p, p, 4, compatibility_mode=1), "UNKNOWN_FIELD", "compatibility_mode"),
             (lambda: packed(p, p, p, 4, True, prefer="fa2"), "UNKNOWN_FIELD", "compatibility_mode"),
             (lambda: packed(q, k, v, 4), "RANK", "q"), (lambda: site(q, k, v, torch.rand(5, 7).numpy()), None, None)]
    for call, code, field in cases:
        with pytest.raises(TypeError if code is None else rapt.ArgumentError) as caught:
            call()
        if code is not None:
            assert caught.value.code == code and (field is None or field in caught.value.field), caught.value
    with pytest.raises(rapt.ArgumentError, match="Expected query, key, and value"):
        site(q, k.half(), v)


# ---- Preferences ----

@pytest.mark.parametrize("layout", ["bshd", "bhsd", "bs(hd)"])
def test_a_mask_has_two_names_and_may_be_given_once_e6(layout):
    x = torch.rand((1, 4, 4, 8) if layout != "bs(hd)" else (1, 4, 32)) - 0.5
    more = {"num_heads": 4} if layout == "bs(hd)" else {}
    site, mask = rapt.torch.attention_site("S", layout=layout), torch.rand(4, 4) < 0.5
    assert torch.equal(site(x, x, x, attn_mask=mask, **more), site(x, x, x, mask=mask, **more))
    assert not torch.equal(site(x, x, x, mask=mask, **more), site(x, x, x, **more))
    with pytest.raises(rapt.ArgumentError, match="attn_mask is given twice, also as mask"):
        site(x, x, x, mask=torch.ones_like(mask), attn_mask=mask, **more)


def test_a_bad_site_is_refused_when_it_is_made():
    cases = [(dict(name=""), "name"), (dict(name=3), "name"), (dict(name="x", layout="bdsh"), "layout"),
             (dict(name="x", prefer="nobody"), "prefer"), (dict(name="x", otherwise="torch.sdpa"), "otherwise"),
             (dict(name="x", prefer="fa2", require="fa2", otherwise="torch.sdpa"), "otherwise"),
             (dict(name="x", prefer=[3]), "prefer"), (dict(name="x", family=3), "family"),
             (dict(name="x", forbid="nobody"), "forbid")]
    for keywords, field in cases:
        with pytest.raises(rapt.ArgumentError) as caught:
            rapt.torch.attention_site(**keywords)
        assert caught.value.field == field, caught.value
    with pytest.raises(TypeError):
        rapt.torch.attention_site("x", backend="fa2")


def test_a_preference_alone_is_no_consent_to_approximate_results_n7():
    for name in ("sage", "sage.fp16_cuda", "fa2,sage", "class:approx"):
        with pytest.raises(rapt.ArgumentError, match="approximate") as caught:
            rapt.torch.attention_site("x", prefer=name)
        assert caught.value.code == "APPROX"
    site = rapt.torch.attention_site("x", layout="bshd", prefer="sage", otherwise="torch.sdpa")
    q = blnc((1, 8, 2, 64), dtype=torch.bfloat16)[0]
    assert site.explain(q, q, q, facts=FA2.replace("cc=9.0 torch", "cc=8.6 torch")).row == "sage.auto"


def test_a_call_goes_before_a_scope_and_a_scope_before_the_site_d9():
    site = rapt.torch.attention_site("x", layout="bshd", require="torch.sdpa", prefer="torch.sdpa")
    q = blnc((1, 5, 2, 8))[0]
    site(q, q, q)
    assert row() == "torch.sdpa"
    with rapt.policy(require="ref"):
        site(q, q, q)
        assert row() == "ref"
        site(q, q, q, require="torch.math")
        assert row() == "torch.math"
    assert site.entered() == {"torch.sdpa": 1, "ref": 1, "torch.math": 1}


def test_forbids_add_up_d9():
    site = rapt.torch.attention_site("x", layout="bshd", forbid="cpu")
    q = blnc((1, 5, 2, 8))[0]
    with rapt.policy(forbid="torch"):
        site(q, q, q)
        assert row() == "ref"
        with pytest.raises(rapt.RefusedError):
            site(q, q, q, forbid="ref")


def test_the_environment_holds_where_a_site_says_nothing_d23(tmp_path):
    code = ("import torch, rapt, rapt.torch\n"
            "q = torch.rand(1, 4, 2, 8)\n"
            "for site in (rapt.torch.attention_site('a', layout='bshd'),\n"
            "             rapt.torch.attention_site('b', layout='bshd', require='torch.sdpa')):\n"
            "    site(q, q, q)\n"
            "    print(rapt.last_report().row, site.report_line(devices='cpu', dtypes='fp32'), sep=' / ')\n")
    environment = {**os.environ, "RAPT_REQUIRE": "ref", "WAM_ATTENTION_IMPL": "fa2",
                   "DIFFSYNTH_ATTENTION_IMPLEMENTATION": "sage"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["ref / a                  : ref", "torch.sdpa / b                  : torch_sdpa"]


def test_two_sites_in_two_threads_keep_their_preferences():
    sites = {name: rapt.torch.attention_site(name, layout="bshd", require=name) for name in ("torch.sdpa", "ref")}
    q, start, seen = blnc((1, 9, 2, 8))[0], threading.Barrier(2), {name: set() for name in sites}

    def work(name):
        start.wait()
        for _ in range(50):
            sites[name](q, q, q)
            seen[name].add(row())

    threads = [threading.Thread(target=work, args=(name,)) for name in sites]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {name: {name} for name in sites}
    assert {name: site.entered() for name, site in sites.items()} == {name: {name: 50} for name in sites}


# ---- What is reported ----

def test_counters_agree_with_the_contexts_r1(wan):
    q, k, v = blnc((2, 5, 2, 8), (2, 7, 2, 8), (2, 7, 2, 8))
    before = rapt.torch.context.entered()
    wan(q, k, v)
    wan(q, k, v, k_lens=[3, 4])
    wan(q.requires_grad_(), k, v, k_lens=[3, 4])
    after = rapt.torch.context.entered()
    changed = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert changed == wan.entered() and changed["torch.sdpa"] == 2 and sum(changed.values()) == 4
    assert rapt.last_report().notes.count("site Wan self attention") == 1
    assert rapt.last_report().notes[-1].startswith("one call for each of 2 samples, with its own lengths: ran torch.sdpa 2x")


def test_notes_of_one_call_do_not_stay_with_the_next(wan):
    q, k, v = blnc((2, 5, 2, 8), (2, 7, 2, 8), (2, 7, 2, 8))
    first = [wan(q, k, v) is not None and rapt.last_report().notes for _ in range(3)]
    assert first[0] == first[1] == first[2] and len(set(first[0])) == len(first[0])
    other = rapt.torch.attention_site("other")
    other(q, k, v)
    assert rapt.last_report().notes[0] == "site other"
    rapt.torch.sdpa(*(t.bfloat16().transpose(1, 2) for t in (q, k, v)))
    assert rapt.last_report().notes == ()


def test_lengths_are_offered_only_where_a_row_may_take_them(monkeypatch):
    """A refusal on the way to a result would stand in the log as one."""
    seen, real = [], rapt.torch.sdpa

    def spy(*args, **keywords):
        seen.append("kv_len" in keywords)
        return real(*args, **keywords)

    monkeypatch.setattr(rapt.torch, "sdpa", spy)
    q, k, v = blnc((2, 5, 2, 8), (2, 7, 2, 8), (2, 7, 2, 8))
    for names, offered in (({}, [True]), (dict(prefer="fa2", otherwise="torch.sdpa"), [False] * 2),
                           (dict(require="ref"), [True])):
        seen.clear()
        rapt.torch.attention_site("x", **names)(q, k, v, k_lens=[3, 4])
        assert seen == offered
    seen.clear()
    rapt.torch.attention_site("x")(q.requires_grad_(), k, v, k_lens=[3, 4])
    assert seen == [False] * 2


LINES = [
    (dict(prefer="fa2", otherwise="torch.sdpa"), "flash_attention_2 (CUDA fp16/bf16 only; torch_sdpa otherwise)"),
    (dict(prefer="xformers", otherwise="torch.sdpa"), "xformers (CUDA only; torch_sdpa otherwise)"),
    (dict(require="torch.sdpa"), "torch_sdpa"),
    (dict(require="fa2"), "flash_attention_2 (CUDA fp16/bf16 only; refused otherwise)"),
]


@pytest.mark.parametrize(("keywords", "line"), LINES, ids=[line for _, line in LINES])
def test_report_lines_r4_r5(keywords, line):
    site = rapt.torch.attention_site("Video DiT", layout="bshd", **keywords)
    assert site.report_line(facts=FA2) == f"Video DiT          : {line}"
    name = line.partition(" (")[0]
    assert site.fused_backend_name(facts=FA2) == (None if name == "torch_sdpa" else name)


def test_the_lines_and_refusals_of_the_page_are_as_printed(wan):
    page = (pathlib.Path(__file__).parents[2] / "docs" / "sites.md").read_text()
    of = [("Video DiT", "bs(hd)", dict(prefer="fa2", otherwise="torch.sdpa")),
          ("Wan self attention", "wan", dict(prefer="fa3,fa2", otherwise="torch.sdpa")),
          ("ActionDiT", "bshd", dict(prefer="xformers", otherwise="torch.sdpa")),
          ("ActionDiT", "bshd", dict(prefer="sage", otherwise="torch.sdpa")),
          ("Wan shared core", "bhsd", dict(require="fa2"))]
    printed = [rapt.torch.attention_site(name, layout=layout, **keywords).report_line(facts=FA2)
               for name, layout, keywords in of]
    assert "\n".join(printed) + "\n```" in page
    q = blnc((2, 6, 4, 16))[0]
    for call in (lambda: wan(q, q, q, k_lens=[7, 1]), lambda: wan(q, q, q, dtype=torch.float32),
                 lambda: rapt.torch.attention_site("ActionDiT", layout="bshd", prefer="sage")):
        with pytest.raises(rapt.ArgumentError) as caught:
            call()
        assert f"\n{caught.value}\n" in page


def test_a_wan_sites_line_speaks_of_the_halves_it_sends_r4():
    site = rapt.torch.attention_site("Video DiT", prefer="fa2", otherwise="torch.sdpa")
    line = "Video DiT          : flash_attention_2 (CUDA only; torch_sdpa otherwise)"
    assert site.report_line(facts=FA2) == site.report_line(facts=FA2, dtypes="fp16,fp32") == line
    q = blnc((1, 8, 2, 64))[0]
    assert site.explain(q, q, q, facts=FA2).row == "fa2"                # fp32 comes as bf16, as the line says


def test_a_line_follows_the_family_and_the_scopes():
    site = rapt.torch.attention_site("x", layout="bshd", prefer="fa2", otherwise="torch.sdpa",
                                     family="fp32 b1 h4 q64 k64 d512")
    assert site.report_line(facts=FA2) == "x                  : torch_sdpa"        # 512 is more than that kernel takes
    small = "fp32 b1 h4 q64 k64 d64"
    assert "flash_attention_2" in site.report_line(small, facts=FA2)
    for which in (small + " causal=br", small + " kvlen=int32 mask=bool:1x1x1x64"):
        assert ("flash_attention_2" in site.report_line(which, facts=FA2)) is ("causal" in which)
    assert site.report_line(small + " causal=br", facts="cpu torch=2.13.0 isa=avx2") == "x                  : torch_sdpa"
    with rapt.policy(require="torch.sdpa"):
        assert site.report_line(small, facts=FA2) == "x                  : torch_sdpa"
    for wrong in (dict(family="fp32 b1"), dict(family=3), dict(dtypes=["fp16"]), dict(dtypes="int8"), dict(devices="gpu"),
                  dict(devices=3), dict(facts="gpu")):
        with pytest.raises(rapt.ArgumentError) as caught:
            site.report_line(**wrong)
        assert caught.value.code == "SYNTAX"


def test_lines_here_are_what_runs_here_r1():
    q = blnc((1, 5, 2, 8))[0]
    for keywords in ({}, {"require": "ref"}, {"prefer": "fa2", "otherwise": "torch.sdpa"}, {"require": "torch.math"}):
        site = rapt.torch.attention_site("x", layout="bshd", **keywords)
        before = rapt.torch.context.entered()
        line = site.report_line(devices="cpu")
        assert rapt.torch.context.entered() == before and site.entered() == {}
        assert rapt.report_line(site, devices="cpu") == line
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            site(*[q.to(dtype)] * 3)
        (ran,) = {info[1] for info in rapt._rapt.ctx_rows(rapt.torch.context.handle) if info[0] in site.entered()}
        assert line == f"x                  : {ran}"


def test_asking_imports_nothing():
    site = rapt.torch.attention_site("x", prefer="fa2,xformers", otherwise="torch.sdpa")
    site.report_line(devices="cpu,cuda")
    before = set(sys.modules)
    site.report_line()
    site.report_line(facts=FA2)
    site.fused_backend_name()
    assert set(sys.modules) == before


def test_explain_says_what_the_call_then_does(wan):
    q, k, v = blnc((2, 5, 2, 8), (2, 7, 2, 8), (2, 7, 2, 8))
    options = dict(k_lens=[3, 4]), dict(causal=True), dict(window_size=(1, 1), deterministic=True)
    for done, options in enumerate(options):
        report = wan.explain(q, k, v, **options)
        assert sum(wan.entered().values()) == done
        wan(q, k, v, **options)
        ran = rapt.last_report()
        assert ran.row == report.row and set(ran.notes) == set(report.notes)
    meta = [t.to("meta") for t in (q, k, v)]
    assert wan.explain(*meta, facts=FA2, version=2).row == "fa2"
    assert wan.explain(*meta, facts=FA2, version=2, k_lens=[3, 4]).row == "fa2"    # sample by sample


def test_sites_are_listed_while_they_live():
    gc.collect()
    before = len(_site.sites())
    site = rapt.torch.attention_site("short-lived")
    assert _site.sites()[-1] is site and len(_site.sites()) == before + 1
    assert copy.deepcopy({"site": site})["site"] is site
    again = rapt.torch.attention_site("p", layout="bshd", prefer="fa2", otherwise="torch.sdpa")
    again = pickle.loads(pickle.dumps(again))
    assert (again.name, again.prefer, again.require) == ("p", "fa2", "fa2,torch.sdpa") and again.FORM == "(B, S, H, D)"
    del again
    reference = weakref.ref(site)
    del site
    gc.collect()
    assert reference() is None and len(_site.sites()) == before


# ---- Compiled ----

def test_dynamic_shapes_and_other_layouts_are_one_graph():
    torch._dynamo.reset()
    for layout, shape in (("bshd", (2, 5, 4, 16)), ("bhsd", (2, 4, 5, 16)), ("bs(hd)", (2, 5, 64))):
        site = rapt.torch.attention_site("x", layout=layout, prefer="fa2", otherwise="torch.sdpa")
        extra = [4] if layout == "bs(hd)" else []
        compiled = torch.compile(lambda q, k, v: site(q, k, v, *extra), fullgraph=True, dynamic=True, backend="aot_eager")
        for rows in (5, 9):
            q = blnc(tuple(rows if n == 5 else n for n in shape))[0]
            assert torch.equal(compiled(q, q, q), site(q, q, q, *extra))
        named = torch.compile(lambda q: site(q, q, q, *extra, require=["ref"], prefer=["ref"], forbid=["torch.math"]),
                              fullgraph=True, backend="aot_eager")
        named(q)
        assert row() == "ref"


def test_in_a_graph_too_a_call_goes_before_a_scope_and_a_scope_before_the_site_d9():
    site = rapt.torch.attention_site("Site", layout="bshd", require="ref", forbid="cpu")
    q = blnc((1, 5, 2, 16))[0]
    compiled = torch.compile(lambda q: site(q, q, q), fullgraph=True, backend="aot_eager")
    said = torch.compile(lambda q: site(q, q, q, require="ref"), fullgraph=True, backend="aot_eager")
    compiled(q)
    assert row() == "ref"
    with rapt.policy(require="torch.sdpa"):
        compiled(q)
        assert row() == "torch.sdpa"
        said(q)
        assert row() == "ref"
    with rapt.policy(require="cpu"), pytest.raises(RuntimeError, match="FORBIDDEN"):       # bans of both hold
        compiled(q)
    compiled(q)
    assert row() == "ref"


# ---- The guard reads where the tensors are, at every call ----

def test_the_device_of_each_call_counts_d2(monkeypatch, wan):
    site = rapt.torch.attention_site("x", layout="bshd", require="cpu")
    q = blnc((1, 5, 2, 8))[0]
    site(q, q, q)
    monkeypatch.setitem(_torch_request._KINDS, "cpu", _call.KINDS["xpu"])
    with pytest.raises(rapt.RefusedError) as caught:
        site(q, q, q, scale=0.5)
    assert "DEVICE" in caught.value.report.codes("cpu.scalar")
