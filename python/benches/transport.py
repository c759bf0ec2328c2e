"""Times of arrays between two processes: umf beside pickle, shared_memory, torch and ray.

Each row is the median time of one message to a consumer and its answer, in microseconds.
`send` sends an array that lies in the transport's memory already, and the consumer reads one
element.
`whole` allocates an array, writes it, sends it, and the consumer reads all of it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from multiprocessing import shared_memory
from typing import Any

import numpy

import umf
import umf.multiprocessing

try:
    import torch
    import torch.multiprocessing
except ImportError:
    torch = None

SIZES = {"1 KiB": 1 << 10, "1 MiB": 1 << 20, "64 MiB": 64 << 20}


class Transport:
    """What is sent for an array, and how its receiver gets the array back."""

    def start(self) -> None:
        """Prepares the process, in the consumer too."""

    def make(self, size: int, value: int | None) -> Any:
        """Returns an array of the transport, written if there is a value, and what keeps it."""
        raise NotImplementedError

    def message(self, made: Any) -> Any:
        return made

    def read(self, message: Any, everything: bool) -> int:
        return int(message.sum()) if everything else int(message[0])

    def end(self, made: Any) -> None:
        """Frees an array whose message was answered."""


class Pickle(Transport):
    def make(self, size: int, value: int | None) -> Any:
        made = numpy.empty(size // 8, numpy.int64)
        made.fill(value or 0)
        return made


class Umf(Transport):
    def make(self, size: int, value: int | None) -> Any:
        made = umf.empty(size // 8, numpy.int64)
        if value is not None:
            made.fill(value)
        return made


class SharedMemory(Transport):
    """The name of a segment. The creator ends it."""

    def make(self, size: int, value: int | None) -> Any:
        made = shared_memory.SharedMemory(create=True, size=size)
        if value is not None:
            numpy.ndarray(size // 8, numpy.int64, made.buf).fill(value)
        return made

    def message(self, made: Any) -> Any:
        return made.name, made.size

    def read(self, message: Any, everything: bool) -> int:
        name, size = message
        segment = shared_memory.SharedMemory(name=name)
        array = numpy.ndarray(size // 8, numpy.int64, segment.buf)
        found = int(array.sum()) if everything else int(array[0])
        del array
        segment.close()
        return found

    def end(self, made: Any) -> None:
        made.close()
        made.unlink()


class Torch(Transport):
    def __init__(self, strategy: str) -> None:
        self.strategy = strategy

    def start(self) -> None:
        torch.set_num_threads(1)
        torch.multiprocessing.set_sharing_strategy(self.strategy)

    def make(self, size: int, value: int | None) -> Any:
        made = torch.empty(size // 8, dtype=torch.int64)
        if value is not None:
            made.fill_(value)
        return made.share_memory_()


def consume(transport: Transport, everything: bool, messages: Any, answers: Any) -> None:
    transport.start()
    while (message := messages.get()) is not None:
        found = transport.read(message, everything)
        del message
        answers.put(found)


def measure(transport: Transport, size: int, everything: bool, rounds: int) -> float:
    """Returns the median time of a message in microseconds."""
    transport.start()
    context = multiprocessing.get_context("spawn")
    # No thread between: `put` of a SimpleQueue writes the pipe.
    messages, answers = context.SimpleQueue(), context.SimpleQueue()
    if isinstance(transport, Torch):
        context = torch.multiprocessing.get_context("spawn")
        messages, answers = context.SimpleQueue(), context.SimpleQueue()
    consumer = context.Process(target=consume, args=(transport, everything, messages, answers))
    consumer.start()
    times = []
    kept = None if everything else transport.make(size, 1)
    for number in range(rounds + 3):
        begin = time.perf_counter()
        made = transport.make(size, number) if everything else kept
        messages.put(transport.message(made))
        found = answers.get()
        if everything:
            transport.end(made)
            del made
        times.append(time.perf_counter() - begin)
        assert found == (number * (size // 8) if everything else 1), (transport, number, found)
    if kept is not None:
        transport.end(kept)
    messages.put(None)
    consumer.join()
    return statistics.median(times[3:]) * 1e6


def measure_ray(size: int, everything: bool, rounds: int) -> float:
    import ray

    @ray.remote
    class Consumer:
        def read(self, array: Any) -> int:
            return int(array.sum()) if everything else int(array[0])

    consumer = Consumer.remote()
    kept = ray.put(numpy.ones(size // 8, numpy.int64))
    times = []
    for number in range(rounds + 3):
        begin = time.perf_counter()
        if everything:
            made = numpy.empty(size // 8, numpy.int64)
            made.fill(number)
            message = ray.put(made)
        else:
            message = kept
        assert ray.get(consumer.read.remote(message)) in (1, number * (size // 8))
        times.append(time.perf_counter() - begin)
    ray.kill(consumer)
    return statistics.median(times[3:]) * 1e6


def open_and_close(handle: bytes, answers: Any) -> None:
    kept = umf.open(umf.Handle(handle))
    known = umf.Handle(handle)
    times = []
    for _ in range(200):
        begin = time.perf_counter()
        for _ in range(100):
            umf.open(known).close()
        times.append((time.perf_counter() - begin) / 100)
    kept.close()
    answers.put(statistics.median(times) * 1e6)


def single_calls() -> None:
    """Prints the times of single calls."""
    context = multiprocessing.get_context("spawn")
    block = umf.Pool.shared().allocate(1 << 20)
    answers = context.SimpleQueue()
    child = context.Process(target=open_and_close, args=(bytes(block.handle()), answers))
    child.start()
    print(f"{'open of a cached handle, close':34} {answers.get():10.2f}")
    child.join()

    def median(call: Any, count: int = 200) -> float:
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            for _ in range(100):
                call()
            times.append((time.perf_counter() - begin) / 100)
        return statistics.median(times) * 1e6

    ours = median(lambda: umf.empty(1 << 20, numpy.uint8))
    peer = median(lambda: numpy.empty(1 << 20, numpy.uint8))
    print(f"{'empty(1 MiB), freed':34} {ours:10.2f} {peer:10.2f} {ours / peer:8.2f}  numpy.empty")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=200)
    arguments.add_argument("--no-ray", action="store_true")
    given = arguments.parse_args()
    peers: dict[str, Transport] = {"pickle": Pickle(), "shared_memory": SharedMemory()}
    if torch is None:
        print("umf-skip: torch cannot be imported")
    else:
        peers["torch fd"] = Torch("file_descriptor")
        peers["torch file"] = Torch("file_system")
    has_ray = not given.no_ray
    if has_ray:
        try:
            import ray

            ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
        except Exception as error:
            print(f"umf-skip: ray: {error}")
            has_ray = False
    print(f"{'name':34} {'ours':>10} {'peer':>10} {'ratio':>8}  (microseconds)")
    single_calls()
    for name, size in SIZES.items():
        for everything in (False, True):
            rounds = max(given.rounds // (10 if size > 1 << 24 else 1), 10)
            ours = measure(Umf(), size, everything, rounds)
            what = "whole" if everything else "send"
            for peer, transport in peers.items():
                theirs = measure(transport, size, everything, rounds)
                row = f"{what} {name}, {peer}"
                print(f"{row:34} {ours:10.1f} {theirs:10.1f} {theirs / ours:8.2f}", flush=True)
            if has_ray:
                theirs = measure_ray(size, everything, rounds)
                row = f"{what} {name}, ray"
                print(f"{row:34} {ours:10.1f} {theirs:10.1f} {theirs / ours:8.2f}", flush=True)
    if has_ray:
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
