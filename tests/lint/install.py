# SPDX-License-Identifier: Apache-2.0
"""An install tree, moved after it was made: README's C snippet built by pkg-config and by CMake's find_package and run, the
installed tool run from it; argv: source, build folder."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

source, build = map(pathlib.Path, sys.argv[1:3])
snippet = re.search(r"```c\n(.*?)```", (source / "README.md").read_text(), re.S).group(1)
expected = re.search(r"```text\n(.*?)```", (source / "README.md").read_text(), re.S).group(1).strip().splitlines()[0]
clean = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH" and not name.startswith("RAPT_")}
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(user C)
find_package(rapt 0.1 REQUIRED)
add_executable(shared user.c)
target_link_libraries(shared PRIVATE rapt::rapt)
add_executable(static user.c)
target_link_libraries(static PRIVATE rapt::static)
"""


def output(*command, **more):
    run = subprocess.run(command, env=dict(clean, **more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if run.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {run.returncode}\n{run.stdout}")
    return run.stdout


def check(title, exe, **more):
    text = output(exe, **more)
    print(title, text)
    if expected.split()[0] not in text:
        sys.exit(f"{title}: the snippet printed {text!r}, README says {expected!r}")


with tempfile.TemporaryDirectory() as tmp:
    tmp = pathlib.Path(tmp)
    output("cmake", "--install", build, "--prefix", tmp / "first")
    prefix = (tmp / "first").rename(tmp / "prefix")
    library = str(next(prefix.rglob("librapt.so")).parent)
    (tmp / "user.c").write_text(snippet)
    (tmp / "user.cc").write_text(snippet)
    (tmp / "CMakeLists.txt").write_text(PROJECT)

    flags = output("pkg-config", "--cflags", "--libs", "rapt", PKG_CONFIG_PATH=str(next(prefix.rglob("rapt.pc")).parent)).split()
    for compiler, std, name in (("cc", "-std=c99", "user.c"), ("c++", "-std=c++11", "user.cc")):
        output(compiler, std, "-Wall", "-Wextra", "-pedantic", "-Werror", tmp / name, *flags, "-o", tmp / "user")
        check(compiler, tmp / "user", LD_LIBRARY_PATH=library)

    output("cmake", "-S", tmp, "-B", tmp / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    output("cmake", "--build", tmp / "build")
    check("find_package, rapt::rapt", tmp / "build/shared")
    check("find_package, rapt::static", tmp / "build/static")

    tool = prefix / "bin/rapt"
    if (build / "rapt").exists():                    # RAPT_BUILD_CLI
        text = output(tool, "info")
        print(text.splitlines()[0])
        if not text.startswith("rapt ") or str(build) in output("ldd", tool):
            sys.exit(f"the installed tool does not use the installed library: {text}")
