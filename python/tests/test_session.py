"""The session: who is a member, and what ends with the last one."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from session_programs import is_gone, keepers, kill, line, run, sockets, started, wait_until

from umf import _keeper, keeper, segments, session

METHODS = ["fork", "spawn", "forkserver"]


def tell_session(queue) -> None:
    queue.put((session.current().id, os.getpid()))


def tell_session_of_child(method: str, queue) -> None:
    child = multiprocessing.get_context(method).Process(target=tell_session, args=(queue,))
    child.start()
    child.join()


@pytest.mark.parametrize("method", METHODS)
def test_children_and_grandchildren_are_members(method: str) -> None:
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    for target, arguments in ((tell_session, ()), (tell_session_of_child, (method,))):
        child = context.Process(target=target, args=(*arguments, queue))
        child.start()
        id_, pid = queue.get(timeout=60)
        child.join()
        assert id_ == session.current().id and pid != os.getpid()


TELL = "from umf import session; print(session.current().id)"


def test_programs_that_a_member_starts_are_members() -> None:
    assert run(TELL, own_session=False) == session.current().id
    assert run(TELL, own_session=True) != session.current().id


def test_child_of_an_ended_member_joins_by_the_first_member() -> None:
    # The program's parent has ended when it imports umf.
    source = f"""
import os, sys, time
from umf import session
id_ = session.current().id
reader, writer = os.pipe()
if os.fork() == 0:
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            time.sleep(0.01)
        os.dup2(writer, 1)
        os.execv(sys.executable, [sys.executable, "-c", {TELL!r}])
    os._exit(0)
os.wait()
os.close(writer)
print(os.read(reader, 100).decode().strip() == id_)
"""
    assert run(source) == "True"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "x" * 100_000,
        "1.zz.1.1.1",
        "1." + "0" * 32 + ".1.1.1",
        "1." + "0" * 32 + ".99999999999999999999.9999999999.9999999999",
        "1." + "0" * 32 + ".1.1.1.1",
        "1." + "0" * 32 + ".٣.1.1",
        "1." + "0" * 32 + ".1.1.1\n",
        "../../etc/passwd",
    ],
)
def test_hostile_variable_starts_a_session(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(session.VARIABLE, text)
    found = run(TELL, own_session=False)
    assert len(found) == 32 and found not in (session.current().id, "0" * 32)


def test_variable_that_names_another_file_starts_a_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = session.current()
    other = os.open("/dev/null", os.O_RDONLY)
    text = f"1.{known.id}.{known.inode}.{os.getpid()}.{other}"
    monkeypatch.setenv(session.VARIABLE, text)
    assert run(TELL, own_session=False) != known.id
    os.close(other)


def test_closed_descriptor_is_opened_again() -> None:
    source = """
import os
from umf import session, segments
id_ = session.current().id
if os.fork() == 0:
    os.closerange(3, 4096)
    null = os.open("/dev/null", os.O_RDONLY)
    segments.create("closed-%d" % os.getppid())
    print(session.current().id == id_, os.fstat(null).st_rdev != 0, flush=True)
    os._exit(0)
os.wait()
print("closed-%d" % os.getpid() in segments.names())
"""
    assert run(source).split() == ["True", "True", "True"]


def test_member_alone_knows_it() -> None:
    source = """
import os
from umf import session
alone = [session.is_alone(), session.is_alone()]
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.read(reader, 1)
    os._exit(0)
alone.append(session.is_alone())
os.write(writer, b"x")
os.waitpid(child, 0)
alone.append(session.is_alone())
print(alone)
"""
    assert run(source) == "[True, True, False, True]"


def test_import_works_with_a_full_table_of_descriptors() -> None:
    source = """
import os
from umf import session
session.leave()
code = compile(open(session.__file__).read(), "session", "exec")
fds = []
try:
    while True:
        fds.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
again = {"__name__": "again"}
exec(code, again)
try:
    again["current"]()
except again["SessionError"] as error:
    print("ulimit" in str(error))
for fd in fds[:3]:
    os.close(fd)
print(len(again["current"]().id))
"""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        assert run(source).split() == ["True", "32"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("method", METHODS)
def test_killing_all_members_leaves_nothing(method: str) -> None:
    source = f"""
import multiprocessing, os, sys, time
from umf import segments, session

def child(name, queue):
    os.close(segments.create(name))
    queue.put(os.getpid())
    time.sleep(600)

if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    queue = context.Queue()
    for number in range(3):
        name = "%s-%d" % (sys.argv[1], number)
        context.Process(target=child, args=(name, queue)).start()
    pids = [queue.get() for _ in range(3)]
    print(session.current().id, *pids, flush=True)
    time.sleep(600)
"""
    # A file: spawn imports it again.
    name = f"killed-{method}-{os.getpid()}"
    path = Path(f"/tmp/{name}.py")
    path.write_text(source)
    starter = "import os, sys; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    try:
        with started(starter, str(path), name) as program:
            id_, *pids = line(program).split()
            assert len(pids) == 3
            assert len(sockets(name)) == 3
            (holder,) = keepers(id_)
            descriptors = Path(f"/proc/{holder}/fd")
            assert sum("memfd:umf-shm-" in os.readlink(fd) for fd in descriptors.iterdir()) == 3
            program.kill()
            for pid in pids:
                os.kill(int(pid), signal.SIGKILL)
            wait_until(lambda: is_gone(holder), "the end of the keeper")
    finally:
        path.unlink()
    assert not sockets(name) and not sockets(id_)
    assert not keepers(id_)
    assert not [file for file in os.listdir("/dev/shm") if name in file]


def test_keeper_ends_with_the_last_member_only() -> None:
    name = f"last-{os.getpid()}"
    source = """
import os, sys, time
from umf import segments, session
os.close(segments.create(sys.argv[1]))
child = os.fork()
if child == 0:
    sys.stdin.read(1)
    os._exit(0)
print(session.current().id, child, flush=True)
os.kill(os.getpid(), 9)
"""
    with started(source, name) as program:
        id_, child = line(program).split()
        program.wait()
        assert segments.info(name)["size"] == 0
        (holder,) = keepers(id_)
        os.kill(int(child), signal.SIGKILL)
        wait_until(lambda: is_gone(holder), "the end of the keeper")
    assert not sockets(name)


def test_keeper_is_started_once() -> None:
    source = """
import os, sys, threading
from umf import keeper, session, _keeper
names = []
def ask():
    with keeper.connect() as client:
        names.append(client.pid())
threads = [threading.Thread(target=ask) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(names), session.current().id, flush=True)
sys.stdin.read(1)
"""
    with started(source) as program:
        count, id_ = line(program).split()
        assert count == "8"
    wait_until(lambda: not keepers(id_), "the end of the keeper")


def test_keeper_needs_no_numpy_and_few_descriptors() -> None:
    segment = segments.create(f"few-{os.getpid()}")
    os.close(segment)
    (holder,) = keepers(session.current().id)
    maps = Path(f"/proc/{holder}/maps").read_text()
    assert "numpy" not in maps
    targets = []
    for fd in Path(f"/proc/{holder}/fd").iterdir():
        # The keeper closes the connection of this process meanwhile.
        with contextlib.suppress(FileNotFoundError):
            targets.append(os.readlink(fd))
    assert targets.count("/dev/null") == 4
    limit = Path(f"/proc/{holder}/limits").read_text()
    (row,) = (entry for entry in limit.splitlines() if entry.startswith("Max open files"))
    assert row.split()[3] == row.split()[4]
    assert os.getsid(holder) != os.getsid(0)
    segments.unlink(f"few-{os.getpid()}")


def test_killed_keeper_is_replaced() -> None:
    source = """
import sys
from umf import segments, session, shared_memory
first = shared_memory.SharedMemory("first" + sys.argv[1], create=True, size=100)
first.buf[0] = 7
print(session.current().id, flush=True)
sys.stdin.readline()
assert first.buf[0] == 7
try:
    shared_memory.SharedMemory("first" + sys.argv[1])
except FileNotFoundError:
    print("lost", flush=True)
second = shared_memory.SharedMemory("first" + sys.argv[1], create=True, size=100)
print(second.size, flush=True)
second.unlink()
sys.stdin.readline()
"""
    with started(source, str(os.getpid())) as program:
        id_ = line(program)
        (holder,) = keepers(id_)
        kill(holder)
        assert program.stdin is not None
        program.stdin.write("x\n")
        program.stdin.flush()
        assert line(program) == "lost"
        assert line(program) == "100"
        assert holder not in keepers(id_)


def test_keeper_survives_hostile_bytes() -> None:
    name = f"hostile-{os.getpid()}"
    os.close(segments.create(name))
    (holder,) = keepers(session.current().id)
    addresses = [
        _keeper.keeper_address(session.current().id),
        _keeper.segment_address(segments.encode(name)),
    ]
    requests = [b"\0", b"C", b"C" + b"/" * 10, b"C" + b"x" * 60_000, b"C\0", b"H", b"H123"]
    requests += [b"H" + os.urandom(258), b"H" + b"UMFH" + bytes(254) * 2, b"Y", b"Y\1\1", b"G"]
    requests += [b"G" + bytes(256), b"G" + b"x" * 50_000, b"Z", b"A" * 1000, b"\xff" * 65_000]
    quiet = []
    for address in addresses:
        for request in requests:
            stream = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stream.settimeout(60)
            stream.connect(address)
            # Without reading the answers.
            for _ in range(20):
                try:
                    stream.send(request)
                except (BlockingIOError, TimeoutError, BrokenPipeError, ConnectionResetError):
                    break
            # With descriptors, which nobody asked for.
            try:
                socket.send_fds(stream, [b"I"], [0, 1, 2])
            except OSError:
                pass
            quiet.append(stream)
    # More connections than the keeper keeps at a time, and more than its table of descriptors has.
    for _ in range(_keeper.CONNECTIONS + 100):
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stream.setblocking(False)
        try:
            stream.connect(addresses[0])
        except BlockingIOError:
            pass
        quiet.append(stream)
    assert segments.info(name)["pid"] == holder
    open_now = len(os.listdir(f"/proc/{holder}/fd"))
    assert open_now <= _keeper.CONNECTIONS + 32
    for stream in quiet:
        stream.close()
    # A request that was cut off by the end of its sender.
    with keeper.connect() as client:
        assert client is not None
        client.stream.send(b"I")
    segments.unlink(name)
    assert keepers(session.current().id) == [holder]


def test_forged_reply_is_an_error() -> None:
    """A process of this user that has taken a name answers what it likes."""
    encoded = segments.encode(f"forged-{os.getpid()}")
    for reply, expected in (
        (b"\0", keeper.KeeperError),
        (b"", FileNotFoundError),
        (b"\1", keeper.KeeperError),
        (b"\1" + struct.pack("<H", 2) + b"text", FileNotFoundError),
        (b"\1\2", keeper.KeeperError),
    ):
        listener = _keeper.listen(_keeper.segment_address(encoded))
        listener.setblocking(True)
        child = os.fork()
        if child == 0:
            stream, _ = listener.accept()
            stream.recv(100)
            if reply:
                stream.send(reply)
            os._exit(0)
        listener.close()
        with pytest.raises(expected):
            segments.attach(os.fsdecode(encoded))
        os.waitpid(child, 0)


def test_name_that_another_user_has_taken_is_refused() -> None:
    if os.geteuid() != 0:
        pytest.skip("names of other users: needs root to become another user")
    name = f"squatted-{os.getpid()}"
    encoded = segments.encode(name)
    ready, done = os.pipe(), os.pipe()
    address = _keeper.segment_address(encoded)
    child = os.fork()
    if child == 0:
        os.setgid(65534)
        os.setuid(65534)
        listener = _keeper.listen(address)
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        listener.close()
        os._exit(0)
    os.read(ready[0], 1)
    for call in (segments.create, segments.attach, segments.unlink, segments.info):
        with pytest.raises(PermissionError, match="user 65534"):
            call(name)
    os.write(done[1], b"x")
    os.waitpid(child, 0)
    for fd in (*ready, *done):
        os.close(fd)


def test_other_users_cannot_ask_the_keeper() -> None:
    if os.geteuid() != 0:
        pytest.skip("requests of other users: needs root to become another user")
    name = f"private-{os.getpid()}"
    os.close(segments.create(name))
    address = _keeper.segment_address(segments.encode(name))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgid(65534)
            os.setuid(65534)
            stream = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stream.connect(address)
            try:
                stream.send(b"A")
                code = 0 if stream.recv(100) == b"" else 2
            except (ConnectionResetError, BrokenPipeError):
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    segments.unlink(name)


def test_user_change_starts_a_session() -> None:
    if os.geteuid() != 0:
        pytest.skip("change of the user: needs root")
    source = """
import os
from umf import session
id_ = session.current().id
os.setgid(65534)
os.setuid(65534)
print(session.current().id != id_, session.current().is_intact())
"""
    assert run(source) == "True True"


def test_keeper_does_not_hold_pipes_of_its_starter() -> None:
    """`subprocess.run(capture_output=True)` waits for the end of each process that has the pipe."""
    source = """
import os, time
from umf import segments, session
os.close(segments.create("pipe-%d" % os.getpid()))
child = os.fork()
if child == 0:
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    time.sleep(600)
print(session.current().id, child)
"""
    # It ends, although the keeper and a member live on.
    id_, child = run(source).split()
    (holder,) = keepers(id_)
    os.kill(int(child), signal.SIGKILL)
    wait_until(lambda: is_gone(holder), "the end of the keeper")


def test_random_kills_leave_nothing() -> None:
    """The short form: `kill_campaign.py` alone makes 1,000 kills."""
    script = Path(__file__).with_name("kill_campaign.py")
    done = subprocess.run(
        [sys.executable, str(script), "--kills", "50"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_poll_of_the_pipe_sees_no_hang_up_while_a_member_lives() -> None:
    reader = session.current().open_reader()
    poll = select.poll()
    poll.register(reader, 0)
    assert poll.poll(0) == []
    os.close(reader)
    assert sys.modules["umf.session"] is session
