# SPDX-License-Identifier: Apache-2.0
"""The shared library at load: what it needs, runs and exports (D22, D26); argv: library, public headers."""
import re
import subprocess
import sys


def tool(*args):
    return subprocess.run(args, check=True, capture_output=True, text=True).stdout


library, headers = sys.argv[1], sys.argv[2:]
bad = []
needed = set(re.findall(r"\(NEEDED\).*\[(.*?)\]", tool("readelf", "-d", library)))
extra = {n for n in needed if not re.match(r"(libc|libm|ld-linux[\w-]*)\.so", n)}
if extra:
    bad.append(f"needs more than libc, libm, ld.so: {sorted(extra)}")

# gcc's own frame_dummy is the one entry of every shared library; ours would be a second one.
for section in (".init_array", ".preinit_array", ".ctors"):
    m = re.search(r"\s" + re.escape(section) + r"\s+\S+\s+\S+\s+\S+\s+([0-9a-f]+)", tool("readelf", "-SW", library))
    entries = int(m.group(1), 16) // 8 if m else 0
    if entries > (1 if section == ".init_array" else 0):
        bad.append(f"{section} has {entries} entries: an initialiser of our own")

exported = set(re.findall(r"\sT\s(\w+)@@", tool("nm", "-D", "--with-symbol-versions", library)))
declared = set()
for header in headers:
    declared |= set(re.findall(r"(?m)^RAPT_API [^;(]*?\b(rapt_\w+)\(", open(header).read()))
if exported != declared:
    bad.append(f"exported, not declared: {sorted(exported - declared)}; declared, not exported: {sorted(declared - exported)}")
print("\n".join(bad))
print(f"symbols: {len(exported)} exported, NEEDED {sorted(needed)}")
sys.exit(1 if bad or len(exported) < 20 else 0)
