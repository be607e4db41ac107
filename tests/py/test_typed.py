# SPDX-License-Identifier: Apache-2.0
"""The stubs say what the modules have: names, parameters, and the same keywords everywhere (E6)."""

import ast
import importlib
import inspect
import os
import pathlib

import pytest
import rapt

os.environ.setdefault("KERAS_BACKEND", "torch")
FOLDER = pathlib.Path(rapt.__file__).parent
STUBS = sorted(path.stem for path in FOLDER.glob("*.pyi"))


def module(stub):
    if stub == "__init__":
        return rapt
    pytest.importorskip(stub)
    if stub == "keras":
        pytest.importorskip("torch")
    return importlib.import_module(f"rapt.{stub}")


def tree(stub):
    return ast.parse((FOLDER / f"{stub}.pyi").read_text()).body


def options(name, stub="__init__"):
    """The keys of a TypedDict, those of its bases included."""
    for node in (*tree(stub), *(tree("__init__") if stub != "__init__" else ())):
        if isinstance(node, ast.ClassDef) and node.name == name:
            keys = {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)}
            return keys.union(*(options(base.id, stub) for base in node.bases if base.id != "TypedDict"))
    raise KeyError(name)


def parameters(node, stub):
    """The names that a function of a stub takes."""
    given = node.args
    names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    unpacked = given.kwarg.annotation.slice.id if given.kwarg is not None else None
    return set(names) | (options(unpacked, stub) if unpacked else set())


def public(stub):
    return {node.name: node for node in tree(stub) if isinstance(node, (ast.FunctionDef, ast.ClassDef))
            and not node.name.startswith("_")}


def test_the_package_is_typed():
    assert (FOLDER / "py.typed").exists() and {"__init__", "torch"} <= set(STUBS)
    public_modules = {path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_")} | {"__init__"}
    assert public_modules == set(STUBS)


@pytest.mark.parametrize("stub", STUBS)
def test_every_function_has_the_parameters_of_its_stub(stub):
    from rapt import _call
    there = module(stub)
    for name, node in public(stub).items():
        real = getattr(there, name)
        if isinstance(node, ast.ClassDef):
            methods = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
            assert all(hasattr(real, method) for method in methods), name
            continue
        signature = inspect.signature(real).parameters
        taken = {key for key, parameter in signature.items() if parameter.kind is not parameter.VAR_KEYWORD}
        if "keywords" in signature:     # explain: what attention takes
            taken |= set(_call.KEYWORDS)
        assert parameters(node, stub) == taken, name


def test_what_all_lists_is_in_the_stub():
    listed = next(ast.literal_eval(node.value) for node in tree("__init__")
                  if isinstance(node, ast.Assign) and node.targets[0].id == "__all__")
    assert listed == rapt.__all__ and set(listed) <= set(public("__init__"))


def test_a_keyword_that_a_stub_forgets_is_noticed():
    """The check above with the fault put in."""
    node = next(n for n in tree("__init__") if isinstance(n, ast.FunctionDef) and n.name == "attention")
    taken = set(inspect.signature(rapt.attention).parameters) - {"unknown"}
    assert parameters(node, "__init__") == taken
    node.args.kwarg = None
    assert parameters(node, "__init__") != taken
