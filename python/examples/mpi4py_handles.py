"""Ranks of an MPI job on one machine exchange handles, and read each other's arrays in place.

mpirun -n 4 python mpi4py_handles.py
"""

from __future__ import annotations

import sys

import numpy

import umf

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    print(f"umf-skip: python: mpi4py_handles.py: {error}; pip install mpi4py, and install an MPI")
    sys.exit(0)


def main() -> None:
    """Sums the arrays of all ranks without copying them."""
    world = MPI.COMM_WORLD
    node = world.Split_type(MPI.COMM_TYPE_SHARED)  # handles are valid on one machine
    mine = umf.array(numpy.full(1_000_000, node.rank + 1.0))
    handles = node.allgather(bytes(umf.handle(mine)))
    arrays = [umf.open(handle, readonly=True) for handle in handles]
    total = sum(float(array.sum()) for array in arrays)
    expected = 1e6 * node.size * (node.size + 1) / 2
    assert total == expected, (total, expected)
    # No rank frees its array before all have read it.
    node.barrier()
    if node.rank == 0:
        print(
            f"{node.size} ranks read {len(arrays)} arrays of {mine.nbytes} bytes: sum {total:.0f}"
        )


if __name__ == "__main__":
    main()
