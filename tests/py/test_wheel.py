# SPDX-License-Identifier: Apache-2.0
"""The package as its users get it: an sdist, the wheel built from it, and an environment with NumPy and nothing else.

One build for all tests. What builds it is the build backend of pyproject.toml, from this environment or, where it is not
here, from the index, as pip would take it."""

import email
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

import numpy
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULES = {"__init__.py", "__main__.py", "py.typed", "torch.py", "_call.py", "_doctor.py", "_report.py"}


def run(*command, **more):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RAPT_", "PYTHON"))}
    done = subprocess.run(command, capture_output=True, text=True, env={**env, **more.pop("env", {})}, **more)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("wheel")


@pytest.fixture(scope="module")
def backend(folder):
    """Where the build backend is found: nowhere special, or a folder that it was put into."""
    if importlib.util.find_spec("scikit_build_core") is not None:
        return {}
    run(sys.executable, "-m", "pip", "install", "-q", "--target", str(folder / "backend"), "scikit-build-core>=0.11")
    return {"PYTHONPATH": str(folder / "backend")}


@pytest.fixture(scope="module")
def sdist(folder, backend):
    code = f"from scikit_build_core.build import build_sdist; build_sdist({str(folder / 'sdist')!r})"
    (folder / "sdist").mkdir()
    run(sys.executable, "-c", code, cwd=ROOT, env=backend)
    return next((folder / "sdist").glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(folder, sdist, backend):
    """Built from the sdist: what that has left out is missed here."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", filter="data")
    source = next((folder / "source").iterdir())
    code = f"from scikit_build_core.build import build_wheel; build_wheel({str(folder / 'wheels')!r})"
    (folder / "wheels").mkdir()
    run(sys.executable, "-c", code, cwd=source, env=backend)
    return next((folder / "wheels").glob("*.whl"))


@pytest.fixture(scope="module")
def python(folder, wheel):
    """The interpreter of an environment with the wheel, and with NumPy as it is here."""
    run(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"))
    interpreter = folder / "venv" / "bin" / "python"
    site = pathlib.Path(run(interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site), str(wheel))
    for part in pathlib.Path(numpy.__file__).parents[1].glob("numpy*"):
        (site / part.name).symlink_to(part)
    return str(interpreter)


def names_in(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


# ---- What is in it ----

def test_one_wheel_serves_every_python_from_3_11_on(wheel):
    assert "-cp311-abi3-linux_" in wheel.name
    assert [name for name in names_in(wheel) if name.endswith(".so")] == ["rapt/_rapt.abi3.so"]


def test_the_wheel_has_the_package_and_no_sources(wheel):
    names = names_in(wheel)
    assert {f"rapt/{name}" for name in MODULES} <= names
    here = {str(path.relative_to(ROOT / "python")) for path in (ROOT / "python/rapt").rglob("*.py*")
            if "__pycache__" not in path.parts and path.suffix in (".py", ".pyi")}
    assert here <= names                                        # subpackages and stubs are not forgotten
    assert not [name for name in names if name.endswith((".c", ".h", ".a", ".pc", ".cmake", ".pyc"))]
    assert {name.split("/")[0] for name in names} == {"rapt", f"{wheel.name.rpartition('-cp311')[0]}.dist-info"}


def test_the_metadata_asks_for_numpy_only(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    needs = metadata.get_all("Requires-Dist")
    assert [need for need in needs if "extra ==" not in need] == ["numpy>=1.26"]
    assert metadata["Requires-Python"] == ">=3.11" and metadata["Name"] == "rapt-attention"
    assert {"torch", "bf16"} <= set(metadata.get_all("Provides-Extra"))


def test_the_extension_needs_libc_libm_and_the_loader_only(folder, wheel):
    with zipfile.ZipFile(wheel) as archive:
        library = archive.extract("rapt/_rapt.abi3.so", folder / "unpacked")
    dynamic = run("readelf", "-d", library)
    needed = re.findall(r"NEEDED.*\[(.*?)\]", dynamic)
    assert {re.sub(r"\.so.*|-x86-64.*|-aarch64.*", "", name) for name in needed} <= {"libc", "libm", "ld-linux"}
    assert "RPATH" not in dynamic and "RUNPATH" not in dynamic
    defined = [line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()]
    assert defined == ["PyInit__rapt"]
    data = pathlib.Path(library).read_bytes()
    assert str(folder).encode() not in data                     # where it was built
    undefined = {line.split()[-1].split("@")[0] for line in run("nm", "-D", "--undefined-only", library).splitlines()}
    assert not [name for name in undefined if name.startswith("_Py") and name not in STABLE]


STABLE = {"_Py_NoneStruct", "_Py_TrueStruct", "_Py_FalseStruct", "_Py_Dealloc", "_Py_IncRef", "_Py_DecRef",
          "_Py_NotImplementedStruct", "_Py_BuildValue_SizeT", "_PyObject_CallFunction_SizeT", "_PyArg_ParseTuple_SizeT"}


def test_the_sdist_has_no_build_results(sdist):
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    assert any(name.endswith("/python/rapt/_rapt.c") for name in names) and any("/include/rapt/" in name for name in names)
    assert not [name for name in names if name.endswith((".so", ".o", ".pyc")) or "/build" in name.split("-0.", 1)[-1][4:10]]


# ---- In an environment of its own ----

def test_it_imports_and_computes(python):
    code = ("import sys, numpy as np, rapt\nq = np.random.default_rng(0).random((1, 2, 9, 8), np.float32)\n"
            "out, lse = rapt.attention(q, q, q, causal=True, return_lse=True)\n"
            "s = np.einsum('bhqd,bhkd->bhqk', q, q) / 8 ** 0.5\ns[..., np.triu(np.ones((9, 9), bool), 1)] = -np.inf\n"
            "w = np.exp(s - s.max(-1, keepdims=True))\nw /= w.sum(-1, keepdims=True)\n"
            "assert np.abs(out - np.einsum('bhqk,bhkd->bhqd', w, q)).max() < 1e-5\n"
            "print(rapt.__file__.startswith(sys.prefix), rapt.last_report().status, 'torch' in sys.modules)")
    assert run(python, "-I", "-c", code).split() == ["True", "OK", "False"]


def test_the_doctor_runs_there(python):
    found = json.loads(run(python, "-I", "-m", "rapt", "doctor", "--json"))
    assert found["problems"] == [] and [entry["version"] for entry in found["frameworks"]] == [None, None, None]
    assert "torch      not installed" in run(python, "-I", "-m", "rapt", "doctor")


@pytest.mark.parametrize("module, use", [("torch", ""), ("diffusers", ""), ("keras", "rapt.keras.install()")])
def test_a_binding_without_its_framework_is_one_clear_error(python, module, use):
    code = f"try:\n    import rapt.{module}\n    {use}\nexcept ImportError as error:\n    print(error)\nimport rapt"
    said = run(python, "-I", "-c", code)
    assert said.count("\n") == 1 and ("torch" in said or module in said)
