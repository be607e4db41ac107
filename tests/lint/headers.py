# SPDX-License-Identifier: Apache-2.0
"""The public headers alone, in C99 and C++11, with every RAPT_*_INIT in use; argv: the source folder."""
import pathlib
import re
import subprocess
import sys
import tempfile

include = pathlib.Path(sys.argv[1]) / "include"
text = "".join((include / "rapt" / name).read_text() for name in ("rapt.h", "provider.h"))
inits = re.findall(r"#define (RAPT_\w+_INIT) RAPT_SIZED\((rapt_\w+)\)", text)
sized = re.findall(r"struct (rapt_\w+) \{\s*uint32_t struct_size", text)
bad = [f"{name}: has struct_size and no RAPT_*_INIT" for name in sized if name not in dict(map(reversed, inits))]
program = "#include <rapt/provider.h>\nint main(void) {\n  uint32_t wrong = 0;\n"
for i, (macro, name) in enumerate(inits):
    program += f"  {name} s{i} = {macro};\n  wrong += s{i}.struct_size != sizeof s{i};\n"
program += "  return wrong != 0;\n}\n"

with tempfile.TemporaryDirectory() as tmp:
    for compiler, std, suffix, more in (("cc", "-std=c99", ".c", []), ("c++", "-std=c++11", ".cc", ["-Wold-style-cast"])):
        source, exe = pathlib.Path(tmp) / f"headers{suffix}", pathlib.Path(tmp) / "headers"
        source.write_text(program)
        flags = [std, "-Wall", "-Wextra", "-pedantic", "-Wconversion", "-Werror", *more, f"-I{include}"]
        run = subprocess.run([compiler, *flags, source, "-o", exe], capture_output=True, text=True)
        if run.returncode or subprocess.run([exe]).returncode:
            bad.append(f"{compiler}: {run.stderr or 'a struct_size is wrong'}")
print("\n".join(bad))
print(f"headers: {len(inits)} structs in two languages")
sys.exit(1 if bad or len(inits) < 9 else 0)
