"""Programs that the tests of sessions and segments start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from umf import session


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits until something is so; fails after a minute, which no machine needs."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"not within a minute: {what}"
        time.sleep(0.01)


def environment(*, own_session: bool = True) -> dict[str, str]:
    """Returns the variables for a program in a session of its own, or in that of the tests."""
    return {
        name: value
        for name, value in os.environ.items()
        if not (own_session and name == session.VARIABLE)
    }


def run(source: str, *arguments: str, own_session: bool = True) -> str:
    """Runs a program to its end and returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", source, *arguments],
        env=environment(own_session=own_session),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextmanager
def started(
    source: str, *arguments: str, own_session: bool = True
) -> Iterator[subprocess.Popen[str]]:
    """Starts a program, whose first line the caller reads, and kills it at the end."""
    program = subprocess.Popen(
        [sys.executable, "-c", source, *arguments],
        env=environment(own_session=own_session),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield program
    finally:
        program.kill()
        program.communicate()


def line(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()


def sockets(part: str) -> list[str]:
    """Returns the addresses of listening umf sockets that contain a text."""
    found = []
    for entry in Path("/proc/net/unix").read_text(errors="replace").splitlines():
        fields = entry.split(" ", 7)
        if part in entry and "@umf-" in entry and fields[3] == "00010000":
            found.append(entry[entry.index("@umf-") :])
    return found


def keepers(id_: str) -> list[int]:
    """Returns the processes that are the keeper of a session."""
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                words = (directory / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if id_.encode() in words:
                found.append(int(directory.name))
    return found


def is_gone(pid: int) -> bool:
    """Whether a process has ended. Its parent may not have waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid), f"the end of process {pid}")
