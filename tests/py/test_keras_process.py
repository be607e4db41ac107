# SPDX-License-Identifier: Apache-2.0
"""rapt.keras in processes of its own: what importing does, other backends of Keras, and Keras' own attention tests."""

import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")
os.environ["KERAS_BACKEND"] = "torch"
keras = pytest.importorskip("keras")


def path_with(folder):
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


def python(code, **environment):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment})
    return done.stdout.strip(), done.stderr.strip()


REFUSE = "import sys, rapt.keras\ntry:\n    rapt.keras.install()\nexcept rapt.ArgumentError as e:\n    print(e)\n"


@pytest.mark.parametrize("name", ["jax", "tensorflow", "numpy", "openvino"])
def test_other_backends_are_refused_by_name_before_anything_is_imported(name):
    out, err = python(REFUSE + "print([m for m in ('torch', 'keras', 'jax') if m in sys.modules])", KERAS_BACKEND=name)
    first, second = out.split("\n")
    assert first.startswith(f"AVAIL: Keras' backend is {name}; ") and "KERAS_BACKEND=torch" in first, out + err
    assert second == "[]"


def test_the_backend_that_runs_counts_not_what_the_environment_says_later(tmp_path):
    (tmp_path / "keras.py").write_text("class backend:\n    backend = staticmethod(lambda: 'numpy')\n")
    out, err = python("import os, keras\n" + REFUSE, PYTHONPATH=path_with(tmp_path))
    assert out.startswith("AVAIL: Keras' backend is numpy; "), out + err


def test_importing_the_adapter_imports_no_framework_and_no_keras_is_one_clear_error(tmp_path):
    out, err = python("import sys, rapt.keras; print([m for m in ('torch', 'keras', 'diffusers') if m in sys.modules])")
    assert out == "[]", err
    (tmp_path / "keras.py").write_text("raise ImportError('no backend here')")
    out, err = python("import rapt.keras\ntry:\n    rapt.keras.install()\nexcept ImportError as e:\n    print(e)",
                      PYTHONPATH=path_with(tmp_path))
    assert out.startswith("rapt.keras needs Keras on PyTorch, and Keras did not import: no backend here"), out + err


PLUGIN = """
import keras, rapt.keras
rapt.keras.install()
nn, calls = keras.src.backend.nn, []
hook = nn.dot_product_attention
def counted(*args, **keywords):
    calls.append(1)
    return hook(*args, **keywords)
nn.dot_product_attention = counted
def pytest_sessionfinish():
    print("hook entered", len(calls))
"""


def test_keras_own_attention_tests_pass_with_rapt_installed(tmp_path):
    (tmp_path / "rapt_plugin.py").write_text(PLUGIN)
    source = os.path.join(os.path.dirname(keras.__file__), "src")
    files = [os.path.join(source, *name.split("/")) for name in (
        "ops/nn_test.py", "layers/attention/multi_head_attention_test.py",
        "layers/attention/grouped_query_attention_test.py")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-p", "rapt_plugin", "-c", os.devnull,
         "--rootdir", str(tmp_path), "-W", "ignore", *files, "-k", "dot_product_attention or attention_test"],
        capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path_with(tmp_path)})
    passed = re.search(r"(\d+) passed", done.stdout)
    entered = re.search(r"hook entered (\d+)", done.stdout)
    assert done.returncode == 0 and passed and int(passed[1]) >= 100, done.stdout[-2000:] + done.stderr[-500:]
    assert int(entered[1]) >= 90
