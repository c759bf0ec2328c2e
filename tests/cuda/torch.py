"""Measures allocate and free of PyTorch's caching allocator, to compare with the bench `cuda`."""

import time

import torch

device = torch.device("cuda:0")
allocate = torch.cuda.caching_allocator_alloc
free = torch.cuda.caching_allocator_delete
for name, size in (("256B", 256), ("64KiB", 64 << 10), ("1MiB", 1 << 20)):
    values = []
    for _ in range(200):
        begun = time.perf_counter_ns()
        for _ in range(64):
            free(allocate(size, device))
        values.append((time.perf_counter_ns() - begun) / 64)
    values.sort()
    # Most of the time is the overhead of Python calls.
    print(f"torch.{name:8} {values[len(values) // 2]:10.1f} ns, through Python")
