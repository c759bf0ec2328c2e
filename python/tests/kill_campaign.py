#!/usr/bin/env python3
"""Kills producers and consumers of shared memory at random, and looks at what is left.

    kill_campaign.py [--kills 1000] [--seed N]

A tree of processes exchanges arrays by queues and pipes, and named segments. The campaign kills its
processes with SIGKILL at random times, and at last the whole tree; half of the time the keeper as
well. Afterwards there are no files in /dev/shm, no sockets and no memory of it. The same is done
with the standard library, whose figures stand beside.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from multiprocessing import shared_memory as standard_memory
from pathlib import Path
from typing import Any, NamedTuple

import numpy

BYTES = 1 << 20
KILLS_OF_A_TREE = 50


class Left(NamedTuple):
    """What is left of a campaign."""

    files: int
    sockets: int
    shmem: int
    """Growth in bytes."""
    kills: int


def _memory(umf: bool) -> Any:
    if umf:
        from umf import shared_memory

        return shared_memory
    return standard_memory


def _array(umf: bool, number: int) -> Any:
    if umf:
        import umf.arrays

        made = umf.arrays.empty(BYTES // 8, numpy.int64)
        made.fill(number)
        return made
    return numpy.full(BYTES // 8, number)


def produce(umf: bool, queue: Any, pipe: Any, names: Any, seed: int) -> None:
    """Sends arrays and names until it is killed."""
    dice = random.Random(seed)
    number = 0
    while True:
        number += 1
        way = dice.randrange(3)
        if way == 0:
            queue.put(_array(umf, number))
        elif way == 1:
            pipe.send(_array(umf, number))
        else:
            segment = _memory(umf).SharedMemory(create=True, size=BYTES)
            segment.buf[:] = number.to_bytes(8, "little") * (BYTES // 8)
            names.send(segment.name)
            segment.close()


def consume_arrays(source: Any) -> None:
    """Reads arrays until it is killed. Their bytes have to be whole."""
    get = source.get if hasattr(source, "get") else source.recv
    last = 0
    while True:
        got = get()
        assert got[0] == got[-1] > last, (got[0], got[-1], last)
        last = got[0]


def consume_names(umf: bool, names: Any) -> None:
    """Attaches and unlinks segments until it is killed."""
    while True:
        segment = _memory(umf).SharedMemory(names.recv())
        assert bytes(segment.buf[:8]) == bytes(segment.buf[-8:]) != bytes(8)
        segment.close()
        segment.unlink()


def run_tree(umf: bool, kills: int, seed: int) -> None:
    """The first process of a tree: starts producers and consumers and kills them."""
    dice = random.Random(seed)
    if umf:
        import umf.multiprocessing  # noqa: F401
        from umf import session

        print(session.current().id, flush=True)
    else:
        # Its tracker belongs to the tree.
        standard_memory.SharedMemory(create=True, size=1).unlink()
        print("standard", flush=True)
    context = multiprocessing.get_context("fork")
    done = 0
    while done < kills:
        queue = context.Queue(8)
        reader, writer = context.Pipe(duplex=False)
        names_reader, names_writer = context.Pipe(duplex=False)
        members = [
            context.Process(
                target=produce, args=(umf, queue, writer, names_writer, dice.randrange(1 << 30))
            ),
            context.Process(target=consume_arrays, args=(queue,)),
            context.Process(target=consume_arrays, args=(reader,)),
            context.Process(target=consume_names, args=(umf, names_reader)),
        ]
        for member in members:
            member.daemon = True
            member.start()
        for end in (reader, writer, names_reader, names_writer):
            end.close()
        dice.shuffle(members)
        for member in members:
            time.sleep(dice.random() * 0.03)
            if member.is_alive() and member.pid is not None:
                os.kill(member.pid, signal.SIGKILL)
                done += 1
            member.join()
            # What ended by itself has lost the other end of its pipe, and prints so.
            assert member.exitcode in (-signal.SIGKILL, 1), member.exitcode
        queue.close()
    print(f"done {done}", flush=True)
    time.sleep(600)


def _listening(id_: str) -> int:
    return sum(f"@umf-keeper-{os.geteuid()}-{id_}" in row for row in _unix_sockets())


def _unix_sockets() -> list[str]:
    return Path("/proc/net/unix").read_text(errors="replace").splitlines()


def _shmem() -> int:
    for row in Path("/proc/meminfo").read_text().splitlines():
        if row.startswith("Shmem:"):
            return int(row.split()[1]) * 1024
    return 0


def _keeper(id_: str) -> int | None:
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                words = (directory / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if id_.encode() in words:
                return int(directory.name)
    return None


def campaign(umf: bool, kills: int, seed: int) -> Left:
    """Runs trees until there were as many kills, and returns what is left."""
    dice = random.Random(seed)
    files, shmem = set(os.listdir("/dev/shm")), _shmem()
    sockets = {row.split()[-1] for row in _unix_sockets() if "@umf-" in row}
    done = 0
    ids = []
    while done < kills:
        environment = {name: text for name, text in os.environ.items() if "UMFPY" not in name}
        command = [sys.executable, __file__, "--tree", "umf" if umf else "standard"]
        command += ["--kills", str(min(kills - done, KILLS_OF_A_TREE))]
        command += ["--seed", str(dice.randrange(1 << 30))]
        tree = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert tree.stdout is not None
        ids.append(tree.stdout.readline().strip())
        words = tree.stdout.readline().split()
        keeper = _keeper(ids[-1])
        os.killpg(tree.pid, signal.SIGKILL)
        if keeper is not None and dice.randrange(2):
            os.kill(keeper, signal.SIGKILL)
        tree.communicate()
        if words[:1] != ["done"]:
            raise RuntimeError(f"a tree of seed {command[-1]} ended by itself")
        done += int(words[1]) + 1
    end = time.monotonic() + 60

    def growth() -> Left:
        left = [
            row
            for row in _unix_sockets()
            if "@umf-" in row and row.split()[-1] not in sockets and _is_of(row, ids)
        ]
        new = [name for name in set(os.listdir("/dev/shm")) - files if name.startswith("psm_")]
        return Left(len(new), len(left), _shmem() - shmem, done)

    while (left := growth()) and time.monotonic() < end:
        if left.files == left.sockets == 0 and left.shmem < 8 * BYTES:
            break
        if not umf:
            # Nothing will come of waiting.
            time.sleep(1)
            left = growth()
            break
        time.sleep(0.1)
    for name in set(os.listdir("/dev/shm")) - files:
        if name.startswith("psm_"):
            os.unlink(f"/dev/shm/{name}")
    return left


def _is_of(row: str, ids: list[str]) -> bool:
    """Whether a socket is that of a keeper of ours, or of a segment with a random name."""
    return "@umf-shm-" in row and "psm_" in row or any(id_ in row for id_ in ids)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--tree", choices=["umf", "standard"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.tree is not None:
        run_tree(given.tree == "umf", given.kills, given.seed)
        return 0
    print(f"seed {given.seed}")
    results = {}
    for name in ("umf", "standard"):
        results[name] = campaign(name == "umf", given.kills, given.seed)
    print(f"{'':20} {'kills':>8} {'files':>8} {'sockets':>8} {'growth of Shmem':>16}")
    for name, left in results.items():
        shown = f"{left.shmem / BYTES:.1f} MiB"
        print(f"{name:20} {left.kills:8} {left.files:8} {left.sockets:8} {shown:>16}")
    ours = results["umf"]
    return 0 if ours.files == ours.sockets == 0 and ours.shmem < 8 * BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
