"""What allocating and freeing costs with PyTorch's caching allocator, beside the bench `cuda`."""

import time

import torch

device = torch.device("cuda:0")
empty = torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete
allocate, free = empty
for name, size in (("256B", 256), ("64KiB", 64 << 10), ("1MiB", 1 << 20)):
    values = []
    for _ in range(200):
        begun = time.perf_counter_ns()
        for _ in range(64):
            free(allocate(size, device))
        values.append((time.perf_counter_ns() - begun) / 64)
    values.sort()
    # Most of it is Python calling; the allocator itself is what is left over an empty call.
    print(f"torch.{name:8} {values[len(values) // 2]:10.1f} ns, through Python")
