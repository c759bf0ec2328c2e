"""`umf keep NAME`: holds a named segment beyond the session that has made it.

The segment goes over from its session's keeper to this process, in one step and with its name. It
ends when this process gets SIGTERM, or when a process unlinks the segment.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from typing import NoReturn

from umf import _keeper, keeper, segments, session

__all__ = ["main"]


def _list() -> None:
    print(f"{'name':32} {'bytes':>16} {'process':>10} held by")
    for name in segments.names():
        try:
            known = segments.info(name)
        except OSError:
            # Unlinked since, or of another user.
            continue
        held = "umf keep" if known.get("kept") else "its session"
        print(f"{name:32} {known.get('size', 0):16} {known.get('pid', 0):10} {held}")


def _stop(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(0)


def _take_over(name: str) -> _keeper.Segment:
    encoded = segments.encode(name)
    known = segments.info(name)
    if known.get("kept"):
        sys.exit(f"umf keep: process {known.get('pid')} keeps segment {name!r} already")
    with keeper.connect_to_segment(encoded) as client:
        _, fds = client.request(b"K")
        if len(fds) != 2:
            keeper.close_all(fds)
            sys.exit(f"umf keep: the holder of segment {name!r} misbehaves")
    listener = socket.socket(fileno=fds[1])
    # The kernel notes the process that clients see as its holder.
    listener.listen(4096)
    return _keeper.Segment(encoded, fds[0], listener)


def _keep(name: str) -> None:
    server = _keeper.Server()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    segment = _take_over(name)
    server.add(segment)
    print(
        f"holds segment {name!r} of {os.fstat(segment.fd).st_size} bytes; "
        f"`umf keep --end {name}` ends it",
        flush=True,
    )
    server.serve()


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Returns its exit code."""
    parser = argparse.ArgumentParser(prog="umf keep", description=__doc__)
    parser.add_argument("name", nargs="?", help="the name of a segment")
    parser.add_argument("--list", action="store_true", help="list the segments of this user")
    parser.add_argument("--end", action="store_true", help="unlink the segment")
    given = parser.parse_args(arguments)
    # Started by a member, this process would keep the session alive.
    session.leave()
    if given.list:
        _list()
        return 0
    if given.name is None:
        parser.error("the name of a segment is missing")
    try:
        if given.end:
            segments.unlink(given.name)
        else:
            _keep(given.name)
    except (OSError, ValueError) as error:
        print(f"umf keep: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
