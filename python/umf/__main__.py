"""The `umf` command: `umf`, or `python -m umf`."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence

from umf import _umf


def _start() -> list[str]:
    """Returns what starts this command again, in the same interpreter and with this package."""
    # Neither `-m`, which looks into the working directory first, nor this file, beside which are
    # modules with names of the standard library.
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    source = (
        f"import sys; sys.path.append({package!r}); "
        "from umf.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    return [sys.executable, "-P", "-c", source]


def _like_a_program() -> None:
    """Undoes what Python changes for its own use, so that the command behaves as a native one."""
    # Ctrl-C ends the process as the signal does, also while the extension waits. A parent that
    # ignores the signal (`nohup`) is respected.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # A descriptor that is closed would be given to the next file that is opened.
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments, or those of the process. Returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:2] == ["help", "keep"]:
        given = ["keep", "--help"]
    if given[:1] == ["keep"]:
        keep = importlib.import_module("umf.keep")
        return int(keep.main(given[1:]) or 0)
    _like_a_program()
    return _umf.command(given, _start())


if __name__ == "__main__":
    sys.exit(main())
