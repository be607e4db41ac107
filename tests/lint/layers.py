# SPDX-License-Identifier: Apache-2.0
"""Arrows between folders go only as docs/design.md lists them; argv: the source folder."""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
# folder -> prefixes that its files may include besides system headers and files of the folder itself
ALLOWED = {
    "include/rapt": ["rapt/"],
    "src/base": ["base/"],
    "src/core": ["core/", "base/", "rapt/"],
    "src/backends/ref": ["backends/ref/", "core/backend.h", "base/", "rapt/"],
    "src/backends/cpu": ["backends/cpu/", "core/backend.h", "base/", "rapt/"],
    "src/backends/external": ["backends/external/", "core/backend.h", "base/", "rapt/"],
    "cli": ["cli/", "rapt/", "jansson.h"],
    "python": ["rapt/", "Python.h"],
}
SYSTEM = re.compile(r"^[a-z0-9_/]+\.h$")
bad, seen = [], 0
for folder, allowed in ALLOWED.items():
    for path in sorted((root / folder).rglob("*.[ch]")):
        seen += 1
        for number, line in enumerate(path.read_text().splitlines(), 1):
            m = re.match(r'\s*#\s*include\s+([<"])([^>"]+)[>"]', line)
            if not m:
                continue
            name = m.group(2)
            if m.group(1) == "<":
                if name.startswith(("core/", "base/", "backends/")):
                    bad.append(f"{path}:{number}: <{name}>")
                continue
            local = (path.parent / name).exists() and "/" not in name
            if not local and not any(name.startswith(a) for a in allowed):
                bad.append(f"{path}:{number}: {folder} may not include {name}")
    for path in sorted((root / folder).rglob("*.c")):
        text = path.read_text()
        if folder == "src/core" and re.search(r"rapti_backend_(cpu|ref|torch|fa)\b", text):
            bad.append(f"{path}: core names a backend outside backends.def")
print("\n".join(bad))
print(f"layers: {seen} files")
sys.exit(1 if bad or seen < 20 else 0)
