# SPDX-License-Identifier: Apache-2.0
"""rapt.doctor() and `python -m rapt doctor`: what it says is what a call does, it imports nothing, and its exit status
tells whether what was asked for can run."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import rapt
from rapt import _doctor


def cli(*arguments, **environment):
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAPT_")}
    done = subprocess.run([sys.executable, "-m", "rapt", *arguments], capture_output=True, text=True,
                          env={**env, **environment})
    return done.returncode, done.stdout, done.stderr


def python(code, **environment):
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAPT_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**env, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def without(*modules):
    """A line that makes these modules look as if they were not installed."""
    return ("import sys, importlib.metadata as m\nreal = m.version\n"
            f"gone = {modules!r}\n"
            "def version(name):\n    if name in gone: raise m.PackageNotFoundError(name)\n    return real(name)\n"
            "m.version = version\n")


# ---- What it says ----

def test_what_it_says_runs_is_what_a_call_does_d1():
    found = rapt.doctor().json
    says = {run["what"]: run["row"] for run in found["runs"] if run["tensors"] == "NumPy arrays"}
    q = np.ones((1, 8, 128, 64), np.float32)
    for what, dtype in (("fp32", np.float32), ("fp16", np.float16), ("fp64", np.float64)):
        rapt.attention(*[q.astype(dtype)] * 3)
        assert rapt.last_report().row == says[what]
    rapt.attention(q, q, q, causal="br", window=(31, 0))
    assert rapt.last_report().row == says["causal, window"]


def test_a_terminal_without_the_letters_of_a_variable_hears_of_it_all_the_same():
    code, out, err = cli("doctor", RAPT_REQUIRE="\u00e9", PYTHONIOENCODING="ascii")
    assert code == 1 and "RAPT_REQUIRE" in out and "\\xe9" in out and not err


def test_what_nobody_serves_is_refused_with_the_same_code_d5():
    runs = [run for run in rapt.doctor().json["runs"] if run["tensors"] == "NumPy arrays"]
    said = next(run for run in runs if run["what"] == "soft cap")
    q = np.ones((1, 8, 128, 64), np.float32)
    try:
        rapt.attention(q, q, q, softcap=30.0)
        assert said["row"] == rapt.last_report().row
    except rapt.RefusedError as refusal:
        assert said["row"] is None and said["why"].split(":")[0] in str(refusal)


def test_every_row_is_listed_once_and_each_group_has_a_remedy_d4():
    found = rapt.doctor().json
    rows = [row for group in found["cannot_run"] for row in group["rows"]] + found["can_run"]
    report = rapt.explain(*[np.ones((1, 1, 2, 4), np.float32)] * 3)
    assert sorted(rows) == sorted(verdict.row for verdict in report.rows)
    assert all(group["why"] and group["remedy"] for group in found["cannot_run"])
    assert len(found["cannot_run"]) <= 12       # groups, not a line a row
    devices = next(group for group in found["cannot_run"] if group["devices"])
    assert "flash_attention_2" in devices["devices"]["cuda"] and "aiter" in devices["devices"]["hip"]


def test_the_text_has_every_section_and_no_long_line():
    text = str(rapt.doctor())
    for title in ("RUNS HERE", "FRAMEWORKS", "ENVIRONMENT", "DOES NOT RUN HERE"):
        assert f"\n{title}" in text
    assert max(map(len, text.splitlines())) <= 110
    assert repr(rapt.doctor()) == text and rapt.doctor().ok and rapt.doctor().problems == ()
    assert json.loads(json.dumps(rapt.doctor().json))["schema"] == "rapt.doctor/1"


def test_nothing_is_imported_d15():
    code = ("import sys, rapt\nrapt.doctor(); str(rapt.doctor())\n"
            "print([m for m in ('torch', 'diffusers', 'keras', 'transformers', 'jax', 'ml_dtypes') if m in sys.modules])")
    assert python(code).strip() == "[]"


def test_without_pytorch_it_speaks_of_numpy_only():
    code = (without("torch", "diffusers", "keras", "ml_dtypes") +
            "import rapt\nfound = rapt.doctor()\nprint({r['tensors'] for r in found.json['runs']})\n"
            "print([f['version'] for f in found.json['frameworks']], found.json['unreached'])\n"
            "print('no bfloat16 for NumPy arrays' in str(found), 'NOT REACHED' in str(found))")
    assert python(code).splitlines() == ["{'NumPy arrays'}", "[None, None, None] []", "True False"]


def test_an_old_pytorch_is_named_with_the_floor():
    code = (without() + "old = m.version\nm.version = lambda name: '2.12.1' if name == 'torch' else old(name)\n"
            "import rapt\nfound = rapt.doctor().json\nprint(found['frameworks'][0]['advice'])\n"
            "print({r['tensors'] for r in found['runs']})")
    advice, tensors = python(code).splitlines()
    assert "2.13 or later" in advice and tensors == "{'NumPy arrays'}"


def test_autocast_pool_and_install_are_those_of_the_moment():
    torch = pytest.importorskip("torch")
    import rapt.torch

    def framework():
        return rapt.doctor().json["frameworks"][0]

    assert framework()["imported"] and framework()["binding_imported"] and not framework()["installed"]
    with rapt.torch.install():
        assert framework()["installed"] and "install() is in force" in str(rapt.doctor())
    assert "rapt.torch.install()" in framework()["advice"]
    before = rapt.torch.use_pool("torch")
    try:
        assert any(state.startswith("threads: PyTorch's") for state in framework()["state"])
    finally:
        rapt.torch.use_pool(before)
    assert rapt.doctor().json["autocast"] == {"device": "cpu", "on": False, "dtype": None}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert rapt.doctor().json["autocast"] == {"device": "cpu", "on": True, "dtype": "bfloat16"}


def test_what_is_installed_into_diffusers_and_keras_is_said():
    for name in ("torch", "diffusers", "keras"):
        if importlib.util.find_spec(name) is None:
            return
    code = ("import rapt, rapt.diffusers, rapt.keras\ndef states():\n"
            "    return [s for f in rapt.doctor().json['frameworks'][1:] for s in f['state']]\n"
            "off = states()\nheld = [rapt.keras.install(), rapt.diffusers.guard(), rapt.diffusers.replace_native()]\n"
            "on = states()\n[one.remove() for one in held]\n"
            "print(len(on), [s for s in on if 'not' in s], all('is not in force' in s for s in off), states() == off)")
    assert python(code, KERAS_BACKEND="torch").strip().endswith("3 [] True True")


def test_the_routes_that_install_cannot_reach_have_a_switch_each():
    torch = pytest.importorskip("torch")
    fast, wrapper, export = rapt.doctor().json["unreached"]
    assert "set_fastpath_enabled(False)" in fast["switch"] and fast["state"] == "closed to rapt now"
    assert "cpp_wrapper" in wrapper["switch"] and "run_decompositions" in export["route"]
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        assert rapt.doctor().json["unreached"][0]["state"] == "open to rapt now"
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_before_and_after_importing_the_binding_the_rows_are_the_same():
    """What is said of PyTorch before it is imported is what its binding then decides."""
    pytest.importorskip("torch")
    code = ("import rapt\ndef rows():\n    runs = rapt.doctor().json['runs']\n"
            "    return {r['what']: r['row'] for r in runs if r['tensors'].startswith('PyTorch')}\n"
            "before = rows()\nimport rapt.torch\nprint(before == rows(), len(before) > 10, before['gradients'])")
    assert python(code).strip() == "True True torch.sdpa"


def test_packages_of_others_are_listed_with_why_they_do_not_work(monkeypatch):
    pytest.importorskip("torch")
    import rapt.torch
    from rapt import _providers
    sage = next(package for package in _providers.PACKAGES if package.name == "sageattention")
    monkeypatch.setattr(_providers, "distribution", lambda package: "2.2.0" if package is sage else None)
    assert [entry["package"] for entry in rapt.doctor().json["packages"]] == ["sageattention"]
    assert "first call on a device" in rapt.doctor().json["packages"][0]["state"]
    monkeypatch.setattr(_providers, "failures", lambda context: {"sageattention": OSError("no libcuda")})
    assert "does not work: OSError: no libcuda" in rapt.doctor().json["packages"][0]["state"]
    assert "PACKAGES OF OTHERS" in str(rapt.doctor())


def test_packages_are_listed_before_pytorch_is_imported():
    code = ("import importlib.metadata as m\nreal = m.version\n"
            "m.version = lambda name: '2.2.0' if name == 'sageattention' else real(name)\n"
            "import rapt\nprint([(p['package'], p['version']) for p in rapt.doctor().json['packages']])")
    assert "('sageattention', '2.2.0')" in python(code)


def test_attention_sites_are_listed_with_their_lines_r4():
    pytest.importorskip("torch")
    import rapt.torch
    site = rapt.torch.attention_site("a place in a model")
    assert site.report_line() in rapt.doctor().json["sites"] and "a place in a model" in str(rapt.doctor())


# ---- One call ----

def test_one_call_is_explained_with_the_cores_own_words():
    found = rapt.doctor("fp32/fp32/bf16 b1 h8 q128 k128 d64")
    assert not found.ok and found.problems[0].startswith("fp32/fp32/bf16 b1 h8 q128 k128 d64: ARG. DTYPE_MIX")
    assert "THE CALL fp32/fp32/bf16" in str(found) and "RUNS HERE" not in str(found)
    served = rapt.doctor("fp32/fp32/bf16 b1 h8 q128 k128 d64 autocast=bf16")
    decision = served.json["problem"]["decision"]
    assert served.ok and decision["status"] == "OK" and served.json["problem"]["text"] in _plain(str(served))
    refused = rapt.doctor("fp32 b1 h8 q128 k128 d64 require=fa2")
    assert "REFUSED" in refused.problems[0] and "DEVICE" in refused.problems[0]
    with pytest.raises(rapt.ArgumentError) as caught:
        rapt.doctor("garbage")
    assert caught.value.code == "SYNTAX"
    with pytest.raises(TypeError):
        rapt.doctor(3)
    with pytest.raises(TypeError):
        rapt.doctor(verbose=True)


def _plain(text):
    return "".join(line.removeprefix("  ") + "\n" for line in text.splitlines())


# ---- The command ----

def test_the_exit_status_is_0_when_all_is_well():
    status, out, err = cli("doctor")
    assert (status, err) == (0, "") and out.startswith(f"rapt {rapt.__version__},")
    status, out, err = cli("doctor", "--json")
    assert (status, err) == (0, "") and json.loads(out)["schema"] == "rapt.doctor/1"


def test_what_was_asked_for_and_cannot_run_is_exit_1():
    status, out, _ = cli("doctor", RAPT_REQUIRE="fa2")
    assert status == 1 and "RAPT_REQUIRE=fa2: no call can run here" in out and "DEVICE" in out
    status, out, _ = cli("doctor", "--json", RAPT_FORBID="cpu,ref,torch")
    assert status == 1 and "RAPT_FORBID=cpu,ref,torch" in json.loads(out)["problems"][0]
    status, out, _ = cli("doctor", RAPT_REQUIRE="nobody", RAPT_ISA="scalar")
    assert status == 1 and "UNKNOWN_NAME" in out and "another variable is wrong" in out
    assert cli("doctor", RAPT_REQUIRE="cpu")[0] == 0
    assert cli("doctor", "fp32 b1 h8 q8 k8 d64 softcap=-1")[0] == 1
    assert cli("doctor", "fp32 b1 h8 q8 k8 d64")[0] == 0


def test_what_a_device_may_still_do_is_not_called_wrong():
    """A required row of a device is not given up while the system shows one and its package is there to be looked at."""
    code = without() + ("old = m.version\nm.version = lambda name: '2.8.3' if name == 'flash-attn' and INSTALLED else old(name)\n"
                        "import rapt\nfrom rapt import _doctor\n_doctor._devices = lambda: DEVICES\nprint(rapt.doctor().ok)")
    for installed, devices, ok in ((True, ["cuda"], True), (False, ["cuda"], False), (True, [], False), (True, ["hip"], True)):
        said = python(f"INSTALLED, DEVICES = {installed}, {devices}\n" + code, RAPT_REQUIRE="fa2")
        assert said.strip() == str(ok), (installed, devices)


def test_scopes_around_the_caller_are_named_d9():
    assert rapt.doctor().json["scope"] is None
    with rapt.policy(require="cpu"):
        assert rapt.doctor().json["scope"]["require"] == "cpu" and "rapt.policy(require=cpu)" in str(rapt.doctor())


def test_a_row_of_pytorch_may_be_required_although_nobody_imported_it():
    pytest.importorskip("torch")
    assert cli("doctor", RAPT_REQUIRE="torch.sdpa")[0] == 0


def test_wrong_arguments_are_exit_2():
    for arguments in ((), ("doctors",), ("doctor", "--jsn"), ("doctor", "--js"), ("doctor", "fp32 b1", "x"),
                      ("doctor", "garbage")):
        status, out, err = cli(*arguments)
        assert (status, out) == (2, "") and err, arguments


def test_variables_are_listed_and_the_ones_that_nothing_reads_are_named_d23(monkeypatch):
    monkeypatch.setenv("RAPT_REQIRE", "cpu")
    listed = {entry["name"]: entry for entry in rapt.doctor().json["environment"]}
    assert listed["RAPT_REQIRE"]["legal"] is None and "did you mean RAPT_REQUIRE" in listed["RAPT_REQIRE"]["text"]
    status, out, _ = cli("doctor", RAPT_MEMORY_LIMIT="1000", RAPT_LOG="")
    assert status == 0 and "RAPT_MEMORY_LIMIT=1000: legal" in out and "RAPT_LOG=: empty" in out
    status, out, _ = cli("doctor", RAPT_LOG="nowhere")
    assert status == 1 and "RAPT_LOG=nowhere: SYNTAX" in out


def test_the_known_variables_are_those_of_the_contract_d23():
    assert set(_doctor._KNOWN) == {"RAPT_REQUIRE", "RAPT_PREFER", "RAPT_FORBID", "RAPT_MEMORY_LIMIT", "RAPT_REF_LIMIT",
                                   "RAPT_ISA", "RAPT_VERIFY", "RAPT_LOG"}
