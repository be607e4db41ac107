# SPDX-License-Identifier: Apache-2.0
"""README's C snippet, extracted, built by pkg-config against an install tree and run; argv: source, build folder."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

source, build = map(pathlib.Path, sys.argv[1:3])
snippet = re.search(r"```c\n(.*?)```", (source / "README.md").read_text(), re.S).group(1)
expected = re.search(r"```text\n(.*?)```", (source / "README.md").read_text(), re.S).group(1).strip().splitlines()[0]
with tempfile.TemporaryDirectory() as tmp:
    prefix = pathlib.Path(tmp) / "prefix"
    subprocess.run(["cmake", "--install", build, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
    pc = next(prefix.rglob("rapt.pc"))
    text = re.sub(r"^prefix=.*$", f"prefix={prefix}", pc.read_text(), flags=re.M)
    pc.write_text(text)
    env = dict(os.environ, PKG_CONFIG_PATH=str(pc.parent))
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "rapt"], env=env, check=True, capture_output=True,
                           text=True).stdout.split()
    for compiler, std, name in (("cc", "-std=c99", "user.c"), ("c++", "-std=c++11", "user.cc")):
        file = pathlib.Path(tmp) / name
        file.write_text(snippet)
        exe = pathlib.Path(tmp) / "user"
        subprocess.run([compiler, std, "-Wall", "-Wextra", "-pedantic", "-Werror", file, *flags, "-o", exe], check=True)
        run = subprocess.run([exe], env=dict(env, LD_LIBRARY_PATH=str(next(prefix.rglob("librapt.so")).parent)),
                             capture_output=True, text=True)
        print(compiler, run.returncode, run.stdout)
        if run.returncode != 0 or expected.split()[0] not in run.stdout:
            sys.exit(f"{compiler}: the snippet printed {run.stdout!r}, README says {expected!r}")
