"""Two unrelated programs share an array. Its handle goes through a file.

python file_handle.py write FILE     # in one terminal: waits until it was read
python file_handle.py read FILE      # in another one
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy

import umf


def write(path: Path) -> None:
    """Makes an array, and writes its handle to the file."""
    made = umf.array(numpy.arange(1_000_000))
    message = umf.send_handle(made)  # for one reader
    # The file appears whole. A handle is no secret: the kernel decides who may open it.
    part = path.with_suffix(".part")
    part.write_bytes(bytes(message))
    os.replace(part, path)
    print(f"wrote the handle of {made.nbytes} bytes to {path}: {path.stat().st_size} bytes")
    while umf.in_transit():
        time.sleep(0.01)
    print(f"the reader has it; its memory is current until this program ends: sum {made.sum()}")
    while not made[0]:
        time.sleep(0.01)
    print(f"the reader wrote {made[0]}")


def read(path: Path) -> None:
    """Opens the array of the other program, reads it, and writes into it."""
    while not path.exists():
        time.sleep(0.01)
    opened = umf.open(path.read_bytes())
    print(f"read {opened.dtype} {opened.shape}: sum {opened.sum()}")
    opened[0] = 42


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("write", "read"):
        sys.exit(__doc__)
    (write if sys.argv[1] == "write" else read)(Path(sys.argv[2]))
