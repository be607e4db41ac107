# SPDX-License-Identifier: Apache-2.0
"""Which rules of docs/contract.md the tests cite; argv: the source folder. Prints `floor: rules_cited N`."""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
rules = re.findall(r"^- \*\*([A-Z]\d+)\*\* (?!withdrawn)", (root / "docs/contract.md").read_text(), flags=re.M)
text = ""
for path in (root / "tests").rglob("*"):
    if path.suffix in {".c", ".h", ".py", ".sh"} and "cases" not in path.parts and path.name != "rules.py":
        text += path.read_text()
# In a comment as it is, in a name behind its words; "b1 h8" of a problem string cites nothing.
cited = [r for r in rules if re.search(rf"\b{r}\b|[a-z0-9]_{r.lower()}(?=_|\b)", text)]
print(f"rules: {len(cited)} of {len(rules)} cited; not cited: {' '.join(r for r in rules if r not in cited)}")
print(f"floor: rules_cited {len(cited)}")
