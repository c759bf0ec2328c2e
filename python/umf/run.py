"""`python -m umf.run script.py args`: runs a program whose shared memory is that of umf.

`-m module` and `-c code` are as for `python`. The program, and each Python process that it starts,
has called `umf.install()`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, NoReturn

from umf import _install

__all__ = ["main"]


def main(arguments: list[str]) -> NoReturn:
    """Replaces this process by an interpreter that runs the program."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m umf.run [-m module | -c code | script] [argument...]")
        sys.exit(0 if arguments else 2)
    if not _install.has_hook():
        sys.exit(
            "umf.run: cannot install umf in the program: umf.pth is not in site-packages; "
            "install the wheel of umf-rs into this environment"
        )
    if sys.flags.ignore_environment and not sys.flags.isolated:
        sys.exit("umf.run: python -E ignores the variable that installs umf: run it without -E")
    os.environ.setdefault(_install.VARIABLE, "1")
    sys.stdout.flush()
    sys.stderr.flush()
    standard: Any = subprocess
    flags = standard._args_from_interpreter_flags()
    os.execv(sys.executable, [sys.executable, *flags, *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
