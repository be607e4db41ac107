# SPDX-License-Identifier: Apache-2.0
"""Papers against the tree: README's C blocks after the first are lines of examples/decode.c, its explain lines are decided;
every C name in docs/ is one of the public headers, unless its line says "not in this version"; every file named exists.

argv: source folder, tool."""
import pathlib
import re
import shlex
import subprocess
import sys

source, tool = pathlib.Path(sys.argv[1]), sys.argv[2]
readme = (source / "README.md").read_text()
example = (source / "examples/decode.c").read_text()
bad = []

blocks = re.findall(r"```c\n(.*?)```", readme, re.S)[1:]
for block in blocks:
    if block not in example:
        bad.append(f"not in examples/decode.c:\n{block}")

lines = re.findall(r"(?m)^    build/rapt (explain .*)$", readme)
for line in lines:
    run = subprocess.run([tool, *shlex.split(line)], capture_output=True, text=True)
    if run.returncode not in (0, 1):  # 1: refused, which the first line shows
        bad.append(f"exit {run.returncode}: rapt {line}\n{run.stdout}{run.stderr}")

headers = "".join(path.read_text() for path in sorted((source / "include/rapt").glob("*.h")))
for paper in [source / "README.md", *sorted((source / "docs").glob("*.md"))]:
    for number, text in enumerate(paper.read_text().splitlines(), 1):
        where = f"{paper.name}:{number}"
        for name in re.findall(r"\b(?:docs|examples|include|bench|src|tests)/[\w./-]+\.\w+", text):
            if not (source / name).is_file() and paper.name != "backends.md":  # which names files of other projects
                bad.append(f"{where}: no such file: {name}")
        if "not in this version" in text:
            continue
        for name in re.findall(r"\b(?:rapt_|RAPT_)\w+\b(?![\w*{<])", text):
            if not name.endswith("_") and not re.search(rf"\b{name}\b", headers):
                bad.append(f"{where}: {name} is not in the headers")

print("\n".join(bad))
print(f"readme: {len(blocks)} blocks, {len(lines)} lines")
sys.exit(1 if bad or not blocks or len(lines) < 3 else 0)
