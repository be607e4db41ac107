# SPDX-License-Identifier: Apache-2.0
"""What runs here, what does not and why, and what to change: rapt.doctor() and `python -m rapt doctor`.

Nothing is imported and nothing is run for it: versions come from the packages' own records, what would run from the
core's decisions on small calls. What only a loaded framework can tell is left out where it is not loaded."""

import difflib
import importlib.metadata
import os
import platform
import re
import sys

from . import _numpy, _policy, _rapt
from ._errors import ArgumentError, argument_error
from ._report import Report

_FLOOR = (2, 13)                        # of PyTorch
_PROBE = "b1 h8 q128 k128 d64"
_DTYPES = ("fp32", "bf16", "fp16", "fp64")

# What a call may ask for, in the words of the core; each is decided in fp32.
_FEATURES = (
    ("causal, window", "b1 h8 q128 k128 d64 causal=br window=31,0"),
    ("mask and bias", "b1 h8 q128 k128 d64 mask=bool:1x1x128x128 bias=fp32:1x1x128x128"),
    ("grouped heads, other width of v", "b1 h8/2 q128 k128 d64/32"),
    ("lengths", "b1 h8 q128 k128 d64 kvlen=int32"),
    ("log-sum-exp", "b1 h8 q128 k128 d64 lse"),
    ("gradients", "b1 h8 q128 k128 d64 grad=q,k,v"),
    ("dropout", "b1 h8 q128 k128 d64 dropout=0.1"),
    ("soft cap", "b1 h8 q128 k128 d64 softcap=30"),
    ("sinks", "b1 h8 q128 k128 d64 sinks=fp32"),
    ("ALiBi slopes", "b1 h8 q128 k128 d64 align=tl alibi=h"),
    ("packed sequences", "b2 h8 q128 k128 d64 causal=br packed=int32"),
)

_FRAMEWORKS = {                         # distribution: (module, our module, the line that puts rapt in)
    "torch": ("torch", "rapt.torch", "import rapt.torch; rapt.torch.install()"),
    "diffusers": ("diffusers", "rapt.diffusers", 'import rapt.diffusers; model.set_attention_backend("rapt")'),
    "keras": ("keras", "rapt.keras", "import rapt.keras; rapt.keras.install()"),
}

# (what, how to go through rapt all the same)
_UNREACHED = (
    ("the inference fast path of nn.MultiheadAttention and nn.TransformerEncoderLayer",
     "torch.backends.mha.set_fastpath_enabled(False)"),
    ("code of torch.compile with the C++ wrapper, and of AOTInductor",
     "torch._inductor.config.cpp_wrapper = False; for AOTInductor there is none, use torch.compile"),
    ("graphs decomposed at export without install() (run_decompositions)",
     "rapt.torch.sdpa in the model, which stays one operator; or the exported program as it is"),
)


# ---- Versions, without importing anything ----

def _version(distribution, module=None):
    """The version as the package's records have it, or a loaded module; None where it is not installed."""
    loaded = sys.modules.get(module or distribution)
    if isinstance(getattr(loaded, "__version__", None), str):
        return str(loaded.__version__)
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _loaded(module):
    """A module that is wholly imported, else None."""
    found = sys.modules.get(module)
    return None if found is None or getattr(getattr(found, "__spec__", None), "_initializing", False) else found


def _number(version):
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


# ---- Contexts: of the bindings that are there, or what they would be ----

def _contexts(faults):
    """[(what its tensors are, handle)]. A fault of the environment goes to faults, and it is then left aside."""
    try:
        places = [("NumPy arrays", _numpy.context.handle)]
    except ArgumentError as error:
        faults.append(str(error))
        return [("NumPy arrays", _rapt.ctx_create({"no_env": True}))]
    version = _version("torch")
    binding = _loaded("rapt.torch")
    if binding is not None:
        places.append(("PyTorch tensors on a CPU", binding.context.handle))
    elif version is not None and _number(version) >= _FLOOR:
        handle = _rapt.ctx_create({})   # what rapt.torch would make: the rows of its operator are data
        _rapt.ctx_register(handle, "torch", "torch.sdpa", None, {"torch": re.match(r"\d+(\.\d+)*", version).group()}, None)
        places.append(("PyTorch tensors on a CPU, once rapt.torch is imported", handle))
    return places


def _explain(handle, problem):
    try:
        status, report = _rapt.ctx_explain(handle, problem)
    except _rapt.Fault as fault:
        raise argument_error(fault.args[1:], None) from None
    return Report(report)


# ---- What runs ----

def _runs(places):
    """[{"tensors", "what", "row", "kernel", "why"}]: what automatic choice takes, feature by feature."""
    found = []
    for tensors, handle in places:
        asked = [(dtype, f"{dtype} {_PROBE}") for dtype in _DTYPES]
        asked += [(what, f"fp32 {problem}") for what, problem in _FEATURES]
        for what, problem in asked:
            report = _explain(handle, problem)
            reason = None if report.row else _nearest(report)
            found.append({"tensors": tensors, "what": what, "problem": problem, "row": report.row,
                          "kernel": report.kernel or None, "why": reason})
    return found


_BY_POLICY = ("NOT_REQUIRED", "FORBIDDEN", "OPT_IN", "UNTESTED")


def _nearest(report):
    """The sentences of the row that came nearest to running a call that nobody runs: of those that the user's preferences
    leave, if any is left, and of the others the one with the fewest reasons."""
    def distance(verdict):
        codes = [reason.code for reason in verdict.reasons]
        return (any(code in codes for code in _BY_POLICY[:2]), sum(code in codes for code in ("DEVICE", "AVAIL", "ISA")),
                sum(code not in _BY_POLICY for code in codes), verdict.row != "ref")
    verdicts = [verdict for verdict in report.rows if verdict.reasons]
    if not verdicts:
        return str(report).splitlines()[0]
    reasons = [reason for reason in min(verdicts, key=distance).reasons if reason.state == "failed"]
    said = [reason for reason in reasons if reason.code not in _BY_POLICY] or reasons
    return " ".join(reason.text for reason in said[:3])


# ---- What does not, by what would have to change ----

_FIRST = ("DEVICE", "ISA", "AVAIL", "VERSION", "KNOWN_BAD", "UNTESTED", "PACKED", "FORBIDDEN", "NOT_REQUIRED")


def _rows(handle):
    """{row: its display name, the reasons that hold for every dtype (none for a row that runs some)}."""
    display = {info[0]: info[1] for info in _rapt.ctx_rows(handle)}
    rows = {}
    for dtype in _DTYPES:
        for verdict in _explain(handle, f"{dtype} {_PROBE}").rows:
            codes = {reason.code: reason for reason in verdict.reasons}
            known = rows.setdefault(verdict.row, [display[verdict.row], codes])[1]
            rows[verdict.row][1] = {code: reason for code, reason in known.items() if code in codes}
    return rows


def _decisive(reasons):
    failed = {code: reason for code, reason in reasons.items() if reason.state == "failed"} or reasons
    return failed[next((code for code in _FIRST if code in failed), next(iter(failed)))]


def _group(row, reason):
    """(what stands in the way, what to do) in words that many rows share."""
    code = reason.code
    if code == "DEVICE":
        return (f"need tensors on another device than {reason.got}",
                'tensors there; to ask about such a machine: rapt.explain(.., facts="cuda cc=9.0 ..")')
    if code == "ISA":
        return f"need a CPU with {reason.want}, this one has {reason.got} or is held to it", "another CPU; lift RAPT_ISA"
    if code == "AVAIL":
        return _unregistered(reason.want, reason.got)
    if code == "UNTESTED":
        return "have never run on hardware of their kind and are not chosen by themselves", 'name one: require="ROW"'
    if code == "OPT_IN":
        return "come from outside and take part only when named", 'name one: prefer="ROW"'
    if code == "FORBIDDEN":
        return f"are forbidden by {reason.got} at level {reason.want}", "lift it there"
    if code == "NOT_REQUIRED":
        return f"are not among the required: {reason.want}", "add them, or drop require"
    sentence, _, remedy = reason.text.replace(row, "the row").partition(". ")
    return sentence.removeprefix(f"{code}: "), remedy or "another row"


def _unregistered(package, why):
    version = _version(package)
    if version is None:
        return f"need the package {package}, which is not installed", f"install {package}, where it serves the device"
    if why != "no provider registered":
        return f"need {package} {version}, which is installed and does not work: {why}", f"a working {package}"
    if _loaded("rapt.torch") is None:
        return f"need {package} {version}, which is looked at by rapt.torch", "import rapt.torch, then ask again"
    return f"need {package} {version}, which is installed, and nobody has registered", "another row"


def _groups(rows):
    """One entry for all rows with one thing in the way. devices: for rows of another device, who wants which."""
    groups = {}
    for row, (display, reasons) in rows.items():
        if not reasons:
            continue
        reason = _decisive(reasons)
        why, remedy = _group(row, reason)
        group = groups.setdefault((why, remedy), {"why": why, "remedy": remedy, "rows": [], "names": [], "devices": {}})
        group["rows"].append(row)
        places = [group["names"]]
        if reason.code == "DEVICE":
            places += [group["devices"].setdefault(kind, []) for kind in _kinds(reason.want)]
        for names in places:
            if display not in names:
                names.append(display)
    return list(groups.values())


def _kinds(want):
    """cuda and hip of "cuda (cc 8.0-12.1), hip"."""
    return re.findall(r"(?:^|, )([a-z]+)", re.sub(r"\([^)]*\)", "", want))


# ---- Frameworks ----

def _torch_state(binding):
    installed = _loaded("rapt._install")
    on = installed is not None and installed.installed()
    state = ["install() is in force: F.scaled_dot_product_attention on a CPU goes through rapt" if on else
             "install() is not in force: F.scaled_dot_product_attention is PyTorch's own"]
    pool = _rapt.ctx_pool(binding.context.handle, None)
    threads = sys.modules["torch"].get_num_threads()
    state.append("threads: " + (f"PyTorch's, {threads}" if pool == "torch" else
                                'rapt\'s own; rapt.torch.use_pool("torch") takes PyTorch\'s, which set_num_threads() limits'))
    return on, state


def _diffusers_state(binding):
    def said(what, module):
        return f"{what} is {'' if getattr(module, '_holders', 0) else 'not '}in force"
    return True, [said("replace_native()", binding), said("guard()", _loaded("rapt._diffusers_guard"))]


def _keras_state(binding):
    state = getattr(binding, "installed", None)
    if not callable(state):
        return True, []
    on = bool(state())
    return on, ["install() is in force" if on else "install() is not in force"]


_STATES = {"torch": _torch_state, "diffusers": _diffusers_state, "keras": _keras_state}


def _keras_advice():
    keras = _loaded("keras")
    backend = keras.config.backend() if keras is not None else os.environ.get("KERAS_BACKEND", "")
    if backend != "torch":
        return "rapt.keras serves the torch backend of Keras only: set KERAS_BACKEND=torch before Keras is imported"
    return None


def _framework(name):
    module, ours, line = _FRAMEWORKS[name]
    version, binding = _version(name, module), _loaded(ours)
    entry = {"name": name, "version": version, "imported": _loaded(module) is not None, "binding": ours,
             "binding_imported": binding is not None, "installed": False, "state": [], "advice": None}
    if version is None:
        return entry
    if name == "torch" and _number(version) < _FLOOR:
        entry["advice"] = "rapt.torch needs PyTorch 2.13 or later: pip install 'torch>=2.13'"
    elif binding is not None:
        entry["installed"], entry["state"] = _STATES[name](binding)
    if entry["advice"] is None and name == "keras":
        entry["advice"] = _keras_advice()
    if entry["advice"] is None and not entry["installed"]:
        entry["advice"] = f"to use it: {line}"
    return entry


def _unreached():
    torch = _loaded("torch")
    states = [None, None, None]
    if torch is not None:
        states[0] = "closed to rapt now" if torch.backends.mha.get_fastpath_enabled() else "open to rapt now"
        config = _loaded("torch._inductor.config")
        if config is not None and config.cpp_wrapper:
            states[1] = "closed to rapt now"
    return [{"route": route, "switch": switch, "state": state}
            for (route, switch), state in zip(_UNREACHED, states)]


def _autocast():
    torch = _loaded("torch")
    if torch is None:
        return None
    on = torch.is_autocast_enabled("cpu")
    return {"device": "cpu", "on": on, "dtype": str(torch.get_autocast_dtype("cpu")).removeprefix("torch.") if on else None}


# ---- Packages of others ----

def _packages(rows):
    """[{"package", "version", "state"}] of what is installed: what rapt.torch has found of it, or that it has not looked."""
    providers, binding = _loaded("rapt._providers"), _loaded("rapt.torch")
    if providers is None or binding is None:
        wanted = {reasons["AVAIL"].want for _, reasons in rows.values() if "AVAIL" in reasons}
        found = {name: _version(name) for name in sorted(wanted - {"torch"})}
        return [{"package": name, "version": version, "state": "rapt.torch, once imported, looks at it"}
                for name, version in found.items() if version is not None]
    failures = providers.failures(binding.context)
    listed = []
    for package in providers.PACKAGES:
        version = None if package.builtin else providers.distribution(package)
        if version is None:
            continue
        state = "imported at the first call on a device that it serves"
        if package.name in failures:
            state = f"does not work: {providers.reason_of(failures[package.name])}"
        listed.append({"package": package.name, "version": version, "state": state})
    return listed


# ---- The environment ----

_KNOWN = tuple(name for name in _rapt.FIELDS if name.startswith("RAPT_"))


def _environment(faults):
    found = []
    for name in sorted(name for name in os.environ if name.startswith("RAPT_")):
        if name not in _KNOWN:
            close = difflib.get_close_matches(name, _KNOWN, 1)
            text = "nothing reads it" + (f"; did you mean {close[0]}?" if close else "")
            legal = None
        elif not os.environ[name]:
            text, legal = "empty, the same as not set", True
        else:
            blamed = [fault for fault in faults if f" {name} " in fault]
            legal = not blamed if blamed or not faults else None
            text = blamed[0] if blamed else "legal" if legal else "not looked at: another variable is wrong"
        found.append({"name": name, "value": os.environ[name], "legal": legal, "text": text})
    return found


def _devices():
    """Kinds of devices that the system shows, without asking a framework."""
    signs = (("cuda", "/dev/nvidiactl"), ("hip", "/dev/kfd"))
    return [kind for kind, path in signs if os.path.exists(path)]


def _may_run(verdict):
    """Whether a row can run, or could once rapt.torch has looked at its package, or at the device."""
    if verdict.verdict != "unable":
        return True
    failed = [reason for reason in verdict.reasons if reason.state == "failed" and reason.code != "OPT_IN"]
    return all(reason.code == "AVAIL" and reason.got == "no provider registered" and _version(reason.want) is not None
               for reason in failed)


def _unmet(places, runs):
    """What the environment asks for and nothing here can do."""
    handle = places[-1][1]
    policy = _explain(handle, f"fp32 {_PROBE}").json["policy"]
    asked = [f"RAPT_{name.upper()}={','.join(policy[name]) if name != 'memory_limit' else policy[name]}"
             for name in ("require", "forbid", "memory_limit") if policy["levels"].get(name) == "environment"]
    if not asked or any(run["row"] for run in runs if run["what"] in _DTYPES):
        return []
    for kind in _devices():
        if any(_may_run(verdict) for verdict in _explain(handle, f"bf16 {_PROBE} assume_finite dev={kind}").rows):
            return []
    why = next(run["why"] for run in runs if run["what"] == "bf16" and run["tensors"] == places[-1][0])
    return [f"{' and '.join(asked)}: no call can run here. {why}"]


def _scope():
    """The scopes of rapt.policy around the caller, None where there are none."""
    held = _policy.held()
    return None if held is None else dict(zip(("require", "prefer", "forbid", "memory_limit"), held))


# ---- All of it ----

class Diagnosis:
    """What doctor() found. str() is the text, `json` the same as a dict, `problems` what was asked for and cannot run
    here, `ok` whether there is none."""

    def __init__(self, json):
        self.json = json

    @property
    def problems(self):
        """One sentence for each thing that the user asked for and that cannot run here."""
        return tuple(self.json["problems"])

    @property
    def ok(self):
        """Whether everything asked for can run."""
        return not self.json["problems"]

    def __str__(self):
        from ._doctor_text import text
        return text(self.json)

    __repr__ = __str__                  # so that rapt.doctor() at a prompt shows what it found


def doctor(problem=None):
    """What runs here, what does not, why, and what to change, as a Diagnosis; print it.

    problem: a problem string such as "fp32 b1 h8 q128 k128 d64" (docs/api.md section 2) asks about that call as well. A
    string that is none raises ArgumentError (SYNTAX, UNKNOWN_FIELD). Nothing is imported and nothing is run."""
    if problem is not None and not isinstance(problem, str):
        raise TypeError(f"problem must be a string, not {type(problem).__name__}")
    faults = []
    places = _contexts(faults)
    asked = None if problem is None else _asked(*places[-1], problem)
    runs, rows = _runs(places), _rows(places[-1][1])
    facts = _explain(places[0][1], f"fp32 {_PROBE}").json["facts"]
    wrong = faults + _unmet(places, runs)
    if asked is not None and asked["decision"]["status"] != "OK":
        wrong.append(f"{problem}: {asked['decision']['status']}. {asked['why']}")
    return Diagnosis({
        "schema": "rapt.doctor/1", "version": _rapt.VERSION, "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}", "numpy": _version("numpy"),
        "ml_dtypes": _version("ml_dtypes"), "cpu": facts["cpu"], "runs": runs,
        "can_run": [row for row, (_, reasons) in rows.items() if not reasons], "cannot_run": _groups(rows),
        "frameworks": [_framework(name) for name in _FRAMEWORKS], "unreached": _unreached() if _version("torch") else [],
        "autocast": _autocast(), "packages": _packages(rows), "environment": _environment(faults), "scope": _scope(),
        "sites": _sites(), "problems": wrong, "problem": asked,
    })


def _asked(tensors, handle, problem):
    """What would happen to one call."""
    report = _explain(handle, problem)
    display = {info[0]: info[1] for info in _rapt.ctx_rows(handle)}
    rows = {verdict.row: (display[verdict.row], {reason.code: reason for reason in reversed(verdict.reasons)})
            for verdict in report.rows}
    return {"asked": problem, "tensors": tensors, "text": str(report), "decision": report.json,
            "why": None if report.row else _sentence(report),
            "can_run": [row for row, (_, reasons) in rows.items() if not reasons], "cannot_run": _groups(rows)}


def _sentence(report):
    if report.error is not None:
        return _rapt.reason_text(report.error, None)
    return _nearest(report)


def _sites():
    """The lines of the attention sites this program has made."""
    module = _loaded("rapt._site_base")
    listed = getattr(module, "sites", None)
    return [site.report_line() for site in listed()] if callable(listed) else []
