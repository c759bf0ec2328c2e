"""A loader of model weights that processes share: the first one reads the file, the others attach.

    python weights.py FILE.npz [--hold]

The arrays are in memory of a domain (`umf.domain`), which lasts as long as a process has it, even
if the process that loaded it ends. With `--hold` the program keeps it until its standard input
ends.

Memory that was loaded in part (its loader was killed) and memory of another file are found by a
digest: the loader writes it last. Loaders take turns by a lock on the file, which the kernel ends
with its process.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy

from umf.domain import Domain

HEADER = struct.Struct("<32sQ")  # SHA-256 of the file, length of the index
ALIGN = 64


def _aligned(offset: int) -> int:
    return -(-offset // ALIGN) * ALIGN


def _plan(arrays: Any) -> tuple[bytes, int]:
    """Returns an index of the arrays (name, type, shape, offset) as JSON, and the size of all."""
    index, offset = [], 0
    for name in arrays.files:
        found = arrays[name]
        index.append((name, found.dtype.str, found.shape, offset))
        offset = _aligned(offset + found.nbytes)
    return json.dumps(index).encode(), offset


def load(path: Path, domain: str = "weights") -> tuple[dict[str, numpy.ndarray[Any, Any]], bool]:
    """Returns the arrays of the file in shared memory, and whether this process has loaded them.

    The arrays are read-only, and keep the memory as long as one of them exists.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
        fcntl.flock(file, fcntl.LOCK_EX)
        with numpy.load(path, allow_pickle=False) as arrays:
            index, size = _plan(arrays)
            start = _aligned(HEADER.size + len(index))
            # Named after the content: a file that has changed gets memory of its own.
            memory = Domain(domain).attach(digest.hex(), start + size)
            view = memoryview(memory)
            is_loaded = HEADER.unpack_from(view) == (digest, len(index))
            if not is_loaded:
                view[HEADER.size : HEADER.size + len(index)] = index
                for name, kind, shape, offset in json.loads(index):
                    _array(memory, kind, shape, start + offset)[...] = arrays[name]
                HEADER.pack_into(view, 0, digest, len(index))
    found = {}
    for name, kind, shape, offset in json.loads(
        bytes(view[HEADER.size : HEADER.size + len(index)])
    ):
        found[name] = _array(memory, kind, shape, start + offset)
        found[name].flags.writeable = False
    return found, not is_loaded


def _array(memory: Any, kind: str, shape: list[int], offset: int) -> numpy.ndarray[Any, Any]:
    return numpy.ndarray(tuple(shape), kind, memory, offset)


def main(path: Path, hold: bool) -> None:
    """Loads the file and prints what it has."""
    arrays, is_loader = load(path)
    how = "loaded" if is_loader else "attached"
    total = sum(float(array.sum()) for array in arrays.values())
    print(f"{how} {len(arrays)} arrays, sum {total:g}", flush=True)
    if hold:
        sys.stdin.read()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), "--hold" in sys.argv)
