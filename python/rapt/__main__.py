# SPDX-License-Identifier: Apache-2.0
"""python -m rapt doctor [--json] [PROBLEM]. Exit: 0 ok; 1 something that was asked for cannot run here; 2 usage."""

import argparse
import json
import sys

from . import ArgumentError, __version__, doctor


def _parser():
    parser = argparse.ArgumentParser(prog="python -m rapt", allow_abbrev=False,
                                     description="Attention that always runs the right kernel and says why.")
    parser.add_argument("--version", action="version", version=f"rapt {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    verb = verbs.add_parser("doctor", allow_abbrev=False, help="what runs here, what does not, why, and what to change",
                            description="What runs here, what does not, why, and what to change. Nothing is imported or "
                            "run for it. Exit: 0 ok; 1 something that was asked for cannot run here; 2 usage.")
    verb.add_argument("problem", nargs="?", metavar="PROBLEM",
                      help='a call to explain as well, such as "fp32 b1 h8 q128 k128 d64"')
    verb.add_argument("--json", action="store_true", help="one document on stdout")
    return parser


def main(arguments=None):
    """The exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        found = doctor(given.problem)
    except ArgumentError as error:
        parser.error(str(error))
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")       # a terminal without the letters of some variable or path
    sys.stdout.write(json.dumps(found.json, indent=1) + "\n" if given.json else str(found))
    return 0 if found.ok else 1


if __name__ == "__main__":
    sys.exit(main())
