# SPDX-License-Identifier: Apache-2.0
"""What importing does and does not do (D15, D22, D23)."""

import importlib.util
import os
import subprocess
import sys

import pytest

FRAMEWORKS = ("torch", "diffusers", "keras", "transformers", "jax", "tensorflow", "peft", "accelerate", "onnx", "ml_dtypes",
              "xformers", "mslk", "flash_attn", "flash_attn_interface", "sageattention", "sageattn3", "aiter", "kernels",
              "torch_npu", "torch_xla", "triton")
# Our modules, each with what it binds, imported before it so that only what our module adds is seen.
BOUND = {"rapt": "numpy", "rapt.torch": "torch", "rapt.diffusers": "diffusers.models.attention_dispatch",
         "rapt.keras": "keras"}
PRESENT = [name for name, host in BOUND.items() if name == "rapt" or
           importlib.util.find_spec(name) is not None and importlib.util.find_spec(host.split(".")[0]) is not None]


def python(code, **environment):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment})
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def test_importing_rapt_imports_no_framework():
    code, out, err = python("import sys, rapt; print([m for m in ('torch', 'ml_dtypes') if m in sys.modules])")
    assert (code, out, err) == (0, "[]", "")


@pytest.mark.parametrize("module", PRESENT)
def test_importing_one_binding_imports_no_other_framework(module):
    code = (f"import sys, {BOUND[module]}\nbefore = set(sys.modules)\nimport {module}\n"
            f"print(sorted({{m.split('.')[0] for m in set(sys.modules) - before}} & set({FRAMEWORKS!r}) - {{'torch'}}), "
            "'torch' in sys.modules)")
    status, out, err = python(code, KERAS_BACKEND="torch")
    assert (status, out) == (0, f"[] {module != 'rapt'}"), err


def test_importing_rapt_imports_numpy_and_nothing_else_installed():
    code = ("import sys\nbefore = set(sys.modules)\nimport rapt\n"
            "new = {m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)\n"
            "print(sorted(m for m in new if m not in ('_distutils_hack', 'sitecustomize')))")
    assert python(code) == (0, "['numpy', 'rapt']", "")


def test_importing_rapt_torch_leaves_the_compiler_alone():
    pytest.importorskip("torch")
    code = ("import sys, torch\nbefore = set(sys.modules)\nimport rapt.torch\n"
            "print([m for m in ('torch._dynamo', 'torch._inductor') if m in sys.modules and m not in before])")
    status, out, err = python(code)
    assert (status, out) == (0, "[]"), err


def test_no_torch_is_one_clear_error(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    code, out, err = python("try:\n    import rapt.torch\nexcept ImportError as e:\n    print(e)",
                            PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert (code, out) == (0, "rapt.torch needs PyTorch, which is not installed: pip install torch, 2.13 or later"), err


def test_an_older_torch_is_one_clear_error(tmp_path):
    (tmp_path / "torch" / "nn").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.12.1+cpu'\n")
    (tmp_path / "torch" / "nn" / "__init__.py").write_text("functional = None\n")
    code, out, err = python("import rapt\ntry:\n    import rapt.torch\nexcept ImportError as e:\n    print(e)",
                            PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert (code, out) == (0, "rapt.torch needs PyTorch 2.13 or later, this is 2.12.1+cpu"), err


def test_the_environment_is_read_at_the_first_call_d23():
    call = "import numpy as np, rapt, os; a = np.ones((1,1,2,4), np.float32); "
    code, out, _ = python(call + "rapt.attention(a,a,a); print(rapt.last_report().row)", RAPT_REQUIRE="ref")
    assert (code, out) == (0, "ref")
    later = "rapt.attention(a,a,a); os.environ['RAPT_REQUIRE'] = 'ref'; rapt.attention(a,a,a); print(rapt.last_report().row)"
    code, out, _ = python(call + later)
    assert code == 0 and out.startswith("cpu.")
    code, out, _ = python(call + "\ntry:\n    rapt.attention(a,a,a)\nexcept rapt.ArgumentError as e:\n    print(e.code)",
                          RAPT_REQUIRE="nobody")
    assert (code, out) == (0, "UNKNOWN_NAME")


def test_nothing_is_printed_e4():
    call = "import numpy as np, rapt; a = np.ones((1,1,2,4), np.float32)\ntry:\n    rapt.attention(a,a,a,softcap=1.0)\nexcept rapt.RefusedError:\n    pass"
    assert python(call) == (0, "", "")
