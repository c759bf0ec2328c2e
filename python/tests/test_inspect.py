"""`umf.stats` and `umf.why`."""

import os
import subprocess
import sys

import pytest

import umf


def test_stats_count_blocks_messages_and_caches() -> None:
    pool = umf.Pool.shared()
    before = umf.stats()
    block = pool.allocate(1 << 20)
    message = block.send_handle()
    during = umf.stats()
    assert during["live_blocks"] == before["live_blocks"] + 1
    assert during["live_bytes"] >= before["live_bytes"] + (1 << 20)
    assert during["in_transit"] == before["in_transit"] + 1
    assert during["exporter"]["entries"] >= 1
    assert sum(pool["live_bytes"] for pool in during["pools"]) == during["live_bytes"]
    assert {pool["name"] for pool in during["pools"]} >= {"shared"}
    block.free()
    assert umf.stats()["held_bytes"] >= 1 << 20
    mapping = umf.open(message)
    opened = umf.stats()
    assert opened["importer"]["in_use"] >= 1
    mapping.close()
    assert umf.drain(5.0) == 0
    after = umf.stats()
    assert (after["in_transit"], after["held_bytes"]) == (before["in_transit"], 0)


def test_stats_of_a_new_process_are_zero() -> None:
    source = "import umf; found = umf.stats(); print(found['pools'], found['live_bytes'])"
    child = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True
    )
    assert child.stdout == "[] 0\n"


def test_why_follows_a_block() -> None:
    block = umf.Pool.shared().allocate(1 << 16)
    handle = block.handle()
    current = umf.why(handle)
    assert (current.state, current.pid, current.unread) == ("current", os.getpid(), None)
    assert str(current).startswith("current: exported") and current.is_leased is False
    message = block.send_handle(2)
    block.free()
    for form in (message, bytes(message), str(message), bytearray(bytes(message))):
        sent = umf.why(form)
        assert (sent.state, sent.unread, sent.is_leased) == ("stale", 2, True)
    assert "freed" in sent.text and "in transit: 2 readers" in sent.text
    assert umf.cancel(message)
    assert umf.why(message).unread == 0
    assert "stale: freed" in repr(umf.why(handle))


def test_why_of_an_array_handle() -> None:
    made = umf.zeros(10)
    for form in (umf.handle(made), bytes(umf.handle(made)), str(umf.handle(made))):
        assert umf.why(form).state == "current"


def test_why_after_the_producer_was_killed() -> None:
    source = """
import umf
block = umf.Pool.shared().allocate(64)
print(block.handle(), flush=True)
input()
"""
    child = subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    text = child.stdout.readline()
    assert child.pid in (umf.why(text).pid,)
    mapping = umf.open(text)
    assert umf.why(text).importers == [os.getpid()]
    child.kill()
    child.communicate(timeout=60)
    gone = umf.why(text)
    assert (gone.state, gone.importers) == ("producer gone", [])
    assert "existing mappings stay valid" in gone.text
    assert len(memoryview(mapping)) == 64


def test_why_leaves_the_limit_of_open_files() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    umf.why(umf.Pool.shared().allocate(64).handle())
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_why_of_other_bytes_is_a_handle_error() -> None:
    with pytest.raises(umf.HandleError):
        umf.why(b"x" * 256)
    with pytest.raises(TypeError):
        umf.why(7)  # type: ignore[arg-type]
