"""A DataLoader whose batches stay in shared memory of a pool.

Run it with `python dataloader.py`, and with `ulimit -n 64` before it: the batches that the main
process keeps have no file descriptors. Without `umf.torch.install()` torch needs one for each.
"""

import os

import torch
from torch.utils.data import DataLoader, Dataset

import umf.torch

# At the top level: spawned children import this file too.
umf.torch.install()


class Images(Dataset):
    """Samples that are made on demand: an image and its label."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, 32, 32), index / 1000), index % 10


def main() -> None:
    loader = DataLoader(
        Images(),
        batch_size=4,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context="spawn",
    )
    kept = [batch for epoch in range(2) for batch in loader]
    images = torch.cat([images for images, _ in kept])
    print(f"{len(kept)} batches, mean {images.mean():.3f}")
    print(f"{len(os.listdir('/proc/self/fd'))} file descriptors")


if __name__ == "__main__":
    main()
