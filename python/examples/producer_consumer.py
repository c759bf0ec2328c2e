"""A producer and a consumer over a `multiprocessing.Queue`: arrays go by handle, not by copy.

    python producer_consumer.py [ARRAYS] [MEGABYTES]

(Not `queue.py`: a program with that name hides the standard library's module `queue`.)
"""

from __future__ import annotations

import multiprocessing
import sys
from typing import Any

import numpy

import umf
import umf.multiprocessing  # registers arrays with multiprocessing


def consume(frames: Any, totals: Any) -> None:
    """Receives arrays until `None`. Each is memory of the producer, mapped here."""
    while (frame := frames.get()) is not None:
        totals.put(int(frame.sum()))


def main(count: int, megabytes: int) -> None:
    """Sends `count` arrays, and compares what the consumer read."""
    frames: Any = multiprocessing.Queue()
    totals: Any = multiprocessing.Queue()
    worker = multiprocessing.Process(target=consume, args=(frames, totals))
    worker.start()
    for number in range(count):
        frame = umf.empty(megabytes << 17, numpy.int64)
        frame[:] = number
        frames.put(frame)
        del frame  # the message keeps the memory until the consumer has it, and then the consumer
    frames.put(None)
    expected = [number * (megabytes << 17) for number in range(count)]
    assert [totals.get(timeout=60) for _ in range(count)] == expected
    worker.join()
    print(f"{count} arrays of {megabytes} MiB arrived; bytes still held: {umf.drain(5.0)}")


if __name__ == "__main__":
    main(*(int(argument) for argument in (*sys.argv[1:], "8", "4")[:2]))
