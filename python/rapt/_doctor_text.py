# SPDX-License-Identifier: Apache-2.0
"""The findings of the doctor as text: short, and what to do beside what is wrong."""

import textwrap

_WIDTH = 110


def _block(title, lines):
    return [title, *lines, ""] if lines else []


def _item(head, body, indent=2, column=0):
    """One entry, its later lines set under its first."""
    start = " " * indent + (head.ljust(column) + " " if head else "")
    return textwrap.wrap(body, _WIDTH, initial_indent=start, subsequent_indent=" " * max(len(start), indent + 2),
                         break_long_words=False, break_on_hyphens=False) or [start.rstrip()]


def _head(found):
    return [f"rapt {found['version']}, Python {found['python']}, NumPy {found['numpy']}, {found['platform']}",
            f"CPU level {found['cpu']['isa']}, up to {found['cpu']['threads']} threads", ""]


def _problems(found):
    lines = [line for problem in found["problems"] for line in _item("-", problem)]
    return _block("WRONG", lines)


def _runs(found):
    """One line for each answer, with everything that has it."""
    lines = []
    for tensors in dict.fromkeys(run["tensors"] for run in found["runs"]):
        mine = [run for run in found["runs"] if run["tensors"] == tensors]
        lines.append(f"  {tensors}")
        rows = dict.fromkeys(run["row"] for run in mine if run["row"])
        for row in rows:
            lines += _item(row, ", ".join(run["what"] for run in mine if run["row"] == row), 4, 16)
        refused = [run["what"] for run in mine if not run["row"]]
        if refused:
            lines += _item("nobody", ", ".join(refused), 4, 16)
    lines += _item("when named:", f"{', '.join(found['can_run'])} (require=\"ROW\")") if found["can_run"] else []
    return _block("RUNS HERE (the row that automatic choice takes for dense fp32 calls with these options)", lines)


def _refused(found):
    """Why nobody serves an option, once a sentence."""
    last = found["runs"][-1]["tensors"]
    said = {}
    for run in found["runs"]:
        if run["tensors"] == last and not run["row"]:
            said.setdefault(run["why"], []).append(run["what"])
    lines = [line for why, what in said.items() for line in _item("", f"{', '.join(what)}: {why}")]
    return _block(f"REFUSED HERE ({last})", lines)


def _groups(groups, indent=2):
    lines = []
    for group in groups:
        if group["devices"]:
            lines += _item("", group["why"] + ":", indent)
            for kind, names in group["devices"].items():
                lines += _item(kind + ":", ", ".join(names), indent + 2)
        else:
            lines += _item("", f"{group['why']}: {', '.join(group['names'])}", indent)
        lines += _item("->", group["remedy"], indent + 2)
    return lines


def _framework(entry):
    if entry["version"] is None:
        return _item(entry["name"], "not installed", 2, 10)
    words = [entry["version"], "imported" if entry["imported"] else "not imported in this process"]
    lines = _item(entry["name"], ", ".join(words), 2, 10)
    if entry["binding_imported"]:
        lines += [line for state in (f"{entry['binding']} is imported", *entry["state"]) for line in _item("", state, 13)]
    if entry["advice"]:
        lines += _item("->", entry["advice"], 13)
    return lines


def _frameworks(found):
    lines = [line for entry in found["frameworks"] for line in _framework(entry)]
    if found["ml_dtypes"] is None:
        lines += _item("ml_dtypes", "not installed: no bfloat16 for NumPy arrays", 2, 10)
        lines += _item("->", "pip install ml_dtypes", 13)
    if found["autocast"] is not None:
        state = found["autocast"]
        said = f"on, {state['dtype']}" if state["on"] else "off"
        lines += _item("autocast", f"of this thread, {state['device']}: {said}", 2, 10)
    return _block("FRAMEWORKS", lines)


def _packages(found):
    return _block("PACKAGES OF OTHERS", [line for entry in found["packages"] for line in
                                         _item(entry["package"], f"{entry['version']}, {entry['state']}", 2, 16)])


def _unreached(found):
    lines = []
    for entry in found["unreached"]:
        state = f" ({entry['state']})" if entry["state"] else ""
        lines += _item("", entry["route"] + state) + _item("->", entry["switch"], 4)
    return _block("NOT REACHED BY rapt.torch.install()", lines)


def _environment(found):
    lines = []
    for entry in found["environment"]:
        lines += _item("", f"{entry['name']}={entry['value']}: {entry['text']}")
    lines = lines or ["  no RAPT_ variable is set"]
    if found["scope"] is not None:
        said = [f"{name}={value}" for name, value in found["scope"].items() if value is not None]
        lines += _item("", f"around this call: rapt.policy({', '.join(said)})")
    return _block("ENVIRONMENT", lines)


def _sites(found):
    return _block("SITES", [line for site in found["sites"] for line in _item("", site)])


def _problem(found):
    asked = found["problem"]
    if asked is None:
        return []
    lines = ["  " + line for line in asked["text"].rstrip().splitlines()]
    if asked["can_run"]:
        lines += _item("can run it:", ", ".join(asked["can_run"]))
    lines += ["  cannot, rows that .."] + _groups(asked["cannot_run"], 4) if asked["cannot_run"] else []
    return _block(f"THE CALL {asked['asked']} ({asked['tensors']})", lines)


def _others(found):
    return _block("DOES NOT RUN HERE (rows that ..)", _groups(found["cannot_run"]))


def text(found):
    """found: the dict of a Diagnosis."""
    if found["problem"] is not None:    # the rest is in the text of a doctor that was not asked about a call
        parts = [_head, _problems, _problem, _environment]
    else:
        parts = [_head, _problems, _runs, _refused, _frameworks, _packages, _unreached, _environment, _sites, _others]
    lines = [line for part in parts for line in part(found)]
    return "\n".join(lines).rstrip() + "\n"
