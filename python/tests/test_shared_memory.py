"""Named segments: `umf.shared_memory`, `umf.install()`, `umf.run` and `umf keep`."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from multiprocessing import shared_memory as standard
from pathlib import Path

import pytest
from session_programs import environment, line, run, sockets, started, wait_until

from umf import _install, segments, session, shared_memory

METHODS = ["fork", "spawn", "forkserver"]


def is_file(name: str) -> bool:
    """Whether a segment is a file, as those of the standard library are."""
    return os.path.exists(f"/dev/shm/{name}")


def make(text: bytes, queue) -> None:
    segment = shared_memory.SharedMemory(create=True, size=4096)
    segment.buf[: len(text)] = text
    queue.put(segment.name)
    segment.close()


def append(segment, queue) -> None:
    segment.buf[3:6] = b"xyz"
    segment.close()
    queue.put("done")


def double(numbers: shared_memory.ShareableList) -> None:
    for index, number in enumerate(numbers):
        numbers[index] = 2 * number
    numbers.shm.close()


@pytest.mark.parametrize("method", METHODS)
def test_segment_of_an_exited_process_is_attached_later(method: str) -> None:
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    maker = context.Process(target=make, args=(b"abc", queue))
    maker.start()
    name = queue.get(timeout=60)
    maker.join()
    assert maker.exitcode == 0
    assert not is_file(name)
    segment = shared_memory.SharedMemory(name)
    assert bytes(segment.buf[:3]) == b"abc" and segment.size == 4096
    changer = context.Process(target=append, args=(segment, queue))
    changer.start()
    assert queue.get(timeout=60) == "done"
    changer.join()
    assert bytes(segment.buf[:6]) == b"abcxyz"
    segment.close()
    segment.unlink()
    with pytest.raises(FileNotFoundError):
        shared_memory.SharedMemory(name)


@pytest.mark.parametrize("method", METHODS)
def test_lists_and_managers(method: str) -> None:
    context = multiprocessing.get_context(method)
    with shared_memory.SharedMemoryManager(ctx=context) as manager:
        numbers = manager.ShareableList([1, 2.5, -3])
        child = context.Process(target=double, args=(numbers,))
        child.start()
        child.join()
        assert child.exitcode == 0 and list(numbers) == [2, 5.0, -6]
        segment = manager.SharedMemory(1000)
        names = [numbers.shm.name, segment.name]
        assert set(names) <= set(segments.names()) and not any(map(is_file, names))
    assert not set(names) & set(segments.names())


def test_unrelated_program_attaches() -> None:
    segment = shared_memory.SharedMemory(create=True, size=100)
    segment.buf[:2] = b"hi"
    source = """
import sys
from umf import shared_memory
segment = shared_memory.SharedMemory(sys.argv[1])
print(bytes(segment.buf[:2]).decode())
segment.buf[:2] = b"ho"
"""
    assert run(source, segment.name, own_session=True) == "hi"
    # Its end has ended nothing.
    assert bytes(segment.buf[:2]) == b"ho"
    shared_memory.SharedMemory(segment.name).close()
    segment.unlink()
    # The mapping lives on.
    assert bytes(segment.buf[:2]) == b"ho"
    segment.close()


def test_name_is_claimed_once_on_the_machine() -> None:
    name = f"once-{os.getpid()}"
    first = shared_memory.SharedMemory(name, create=True, size=10)
    for path in (name, "/" + name):
        with pytest.raises(FileExistsError):
            shared_memory.SharedMemory(path, create=True, size=10)
    source = """
import sys
from umf import shared_memory
try:
    shared_memory.SharedMemory(sys.argv[1], create=True, size=10)
except FileExistsError:
    print("exists")
"""
    assert run(source, name, own_session=True) == "exists"
    first.close()
    first.unlink()
    with pytest.raises(FileNotFoundError):
        first.unlink()


def test_threads_that_create_the_same_name() -> None:
    name = f"threads-{os.getpid()}"
    results = []

    def create() -> None:
        try:
            os.close(segments.create(name))
            results.append(True)
        except FileExistsError:
            results.append(False)

    threads = [threading.Thread(target=create) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False] * 15 + [True]
    segments.unlink(name)


@pytest.mark.parametrize(
    "name", ["a", "x" * 60, "y" * 255, "ä" * 100, "with blank", "#hash", "-", "\udcff", "a\nb"]
)
def test_names(name: str) -> None:
    unique = f"{os.getpid()}{name}"[:255]
    while len(os.fsencode(unique)) > 255:
        unique = unique[:-1]
    segment = shared_memory.SharedMemory(unique, create=True, size=10)
    assert segment.name == unique
    segment.buf[0] = 9
    other = shared_memory.SharedMemory(unique)
    assert other.buf[0] == 9
    known = segments.info(unique)
    assert known["name"] == unique and known["size"] == 10 and known["kept"] is False
    if "\n" not in unique:
        assert unique in segments.names()
    for each in (segment, other):
        each.close()
    segment.unlink()


@pytest.mark.parametrize(
    ("name", "error"),
    [("a\0b", ValueError), ("a/b", OSError), ("x" * 256, OSError), ("/", OSError), (5, TypeError)],
)
def test_wrong_names_are_refused(name, error: type[Exception]) -> None:
    with pytest.raises(error):
        shared_memory.SharedMemory(name, create=True, size=10)
    with pytest.raises(error):
        shared_memory.SharedMemory(name)


def test_segment_beyond_the_memory_is_refused() -> None:
    before = segments.names()
    with pytest.raises(MemoryError, match="free memory or request less") as caught:
        shared_memory.SharedMemory(create=True, size=1 << 50)
    assert isinstance(caught.value, OSError) and caught.value.errno == 12
    assert segments.names() == before


def test_segments_with_few_descriptors() -> None:
    """A process that attaches and closes needs no descriptor afterwards; the keeper's limit is the
    hard one."""
    source = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from umf import shared_memory
made = []
for number in range(200):
    segment = shared_memory.SharedMemory(create=True, size=100)
    made.append(segment.name)
    segment.close()
open_ones = []
try:
    while True:
        open_ones.append(shared_memory.SharedMemory(made[0]))
except OSError as error:
    print(error.errno, len(open_ones) > 20)
open_ones[0].close()
open_ones[1].close()
open_ones[2].close()
print(shared_memory.SharedMemory(made[1]).size)
"""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard >= 1024 and soft >= 64
    assert run(source).split() == ["24", "True", "100"]


def test_keeper_without_descriptors_says_so() -> None:
    source = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
from umf import segments
import os
made = []
try:
    while True:
        name = "many-%d-%d" % (os.getpid(), len(made))
        os.close(segments.create(name))
        made.append(name)
except OSError as error:
    print(error.errno, "ulimit -Hn" in str(error), len(made))
for name in made:
    segments.unlink(name)
os.close(segments.create("again-%d" % os.getpid()))
print("again")
"""
    assert run(source).split() == ["24", "True", "32", "again"]


def test_size_of_a_segment_cannot_shrink() -> None:
    fd = segments.create(f"shrink-{os.getpid()}")
    segments.resize(fd, 8192)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 4096)
    os.close(fd)
    segments.unlink(f"shrink-{os.getpid()}")


def test_classes_are_of_this_module_without_install() -> None:
    assert shared_memory.SharedMemory is not standard.SharedMemory
    assert shared_memory.SharedMemory.__module__ == "umf.shared_memory"
    assert not hasattr(standard, "_umf_installed")
    segment = shared_memory.SharedMemory(create=True, size=10)
    segment.buf[0] = 3
    other = pickle.loads(pickle.dumps(segment))
    assert type(other) is shared_memory.SharedMemory and other.buf[0] == 3
    with pytest.raises(FileNotFoundError):
        standard.SharedMemory(segment.name)
    other.close()
    segment.close()
    segment.unlink()
    plain = standard.SharedMemory(create=True, size=10)
    assert is_file(plain.name)
    plain.close()
    plain.unlink()


def test_install_keeps_the_classes() -> None:
    source = """
import warnings
from multiprocessing import managers, resource_tracker, shared_memory
known = shared_memory.SharedMemory
import umf
warnings.simplefilter("ignore")
umf.install()
umf.install()
import umf.shared_memory
assert shared_memory.SharedMemory is known is umf.shared_memory.SharedMemory
assert umf.shared_memory.SharedMemoryManager is managers.SharedMemoryManager
segment = shared_memory.SharedMemory(create=True, size=10)
assert segment.name in umf.segments.names()
# What programs do against the tracker of the standard library.
resource_tracker.unregister(segment._name, "shared_memory")
resource_tracker.register(segment._name, "shared_memory")
assert resource_tracker._resource_tracker._pid is None
segment.unlink()
resource_tracker.unregister(segment._name, "shared_memory")
assert resource_tracker._resource_tracker._pid is None
# What is not of umf goes to the tracker.
resource_tracker.register("/other", "shared_memory")
resource_tracker.unregister("/other", "shared_memory")
assert resource_tracker._resource_tracker._pid is not None
print("installed")
"""
    assert run(source) == "installed"


USES = """
import multiprocessing, os, subprocess, sys
from multiprocessing import shared_memory

def make(queue):
    segment = shared_memory.SharedMemory(create=True, size=100)
    segment.buf[0] = 5
    queue.put(segment.name)
    segment.close()

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        child = context.Process(target=make, args=(queue,))
        child.start()
        name = queue.get()
        child.join()
        segment = shared_memory.SharedMemory(name)
        assert name not in os.listdir("/dev/shm") and segment.buf[0] == 5, method
        segment.close()
        segment.unlink()
    code = ("import sys; from multiprocessing.shared_memory import SharedMemory as S;"
            "s = S(sys.argv[1], create=True, size=7); s.close()")
    subprocess.run([sys.executable, "-c", code, "sub-%d" % os.getpid()], check=True)
    segment = shared_memory.SharedMemory("sub-%d" % os.getpid())
    print(segment.size, *sys.argv[1:])
"""


def needs_hook() -> None:
    if not _install.has_hook():
        pytest.skip("umf.run: umf.pth is not in site-packages; install the wheel")


@pytest.mark.parametrize("way", ["script", "-m", "-c"])
def test_run_installs_in_all_children(tmp_path: Path, way: str) -> None:
    needs_hook()
    script = tmp_path / "uses_segments.py"
    script.write_text(USES)
    report = tmp_path / "report"
    arguments = {"script": [str(script)], "-m": ["-m", "uses_segments"], "-c": ["-c", USES]}[way]
    if way == "-c":
        # Its children cannot import what they have to run: only forked ones work, as in Python.
        arguments = ["-c", "from multiprocessing.shared_memory import *; print(7, 'x')"]
    done = subprocess.run(
        [sys.executable, "-m", "umf.run", *arguments, *([] if way == "-c" else ["x"])],
        env=environment() | {_install.VARIABLE: str(report)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["7", "x"]), done.stderr
    # The program, and its children by fork, spawn, forkserver and subprocess.
    assert len(report.read_text().splitlines()) >= (1 if way == "-c" else 5)


def test_run_passes_code_and_errors_on() -> None:
    needs_hook()
    for arguments, code in ((["-c", "raise SystemExit(7)"], 7), ([], 2), (["/no/file"], 2)):
        command = [sys.executable, "-m", "umf.run", *arguments]
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        assert done.returncode == code


KEEPS = "import sys; from umf import keep; sys.exit(keep.main(sys.argv[1:]))"


def test_segment_is_kept_beyond_its_session() -> None:
    name = f"kept-{os.getpid()}"
    source = """
import sys
from umf import session, shared_memory
segment = shared_memory.SharedMemory(sys.argv[1], create=True, size=10)
segment.buf[:4] = b"kept"
print(session.current().id, flush=True)
sys.stdin.readline()
"""
    with started(source, name) as maker:
        id_ = line(maker)
        with started(KEEPS, name) as holder:
            assert "holds segment" in line(holder)
            assert segments.info(name) == {
                "name": name,
                "size": 10,
                "pid": holder.pid,
                "kept": True,
            }
            maker.kill()
            maker.wait()
            wait_until(lambda: not sockets(id_), "the end of the session")
            again = shared_memory.SharedMemory(name)
            assert bytes(again.buf[:4]) == b"kept"
            again.close()
            listed = run(KEEPS, "--list")
            assert [row for row in listed.splitlines() if name in row and "umf keep" in row]
            second = subprocess.run(
                [sys.executable, "-c", KEEPS, name], capture_output=True, text=True, check=False
            )
            assert second.returncode == 1 and "keeps segment" in second.stderr
            assert run(KEEPS, name, "--end") == ""
            assert holder.wait(60) == 0
    with pytest.raises(FileNotFoundError):
        shared_memory.SharedMemory(name)


def test_keep_ends_at_sigterm() -> None:
    name = f"term-{os.getpid()}"
    os.close(segments.create(name))
    # As a child of this session: it must not keep the session alive either.
    with started(KEEPS, name, own_session=False) as holder:
        assert "holds segment" in line(holder)
        targets = [os.readlink(fd) for fd in Path(f"/proc/{holder.pid}/fd").iterdir()]
        assert f"pipe:[{session.current().inode}]" not in targets
        holder.send_signal(signal.SIGTERM)
        assert holder.wait(60) == 0
    assert name not in segments.names()


def test_keep_without_a_segment_is_an_error() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KEEPS, "no-such"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "create it first" in done.stderr


def test_unlink_under_load_of_attaches() -> None:
    """Attach either works or is `FileNotFoundError`."""
    name = f"load-{os.getpid()}"
    stop = threading.Event()
    wrong: list[BaseException] = []
    attached = []

    def attach() -> None:
        while not stop.is_set():
            try:
                os.close(segments.attach(name))
                attached.append(1)
            except FileNotFoundError:
                pass
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=attach) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        os.close(segments.create(name))
        segments.unlink(name)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong and attached


@pytest.mark.parametrize("method", METHODS)
def test_cases_of_cpython(method: str) -> None:
    script = Path(__file__).with_name("cpython")
    done = subprocess.run(
        [sys.executable, str(script), method],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    print(done.stdout)
    if done.stdout.startswith("umf-skip:"):
        pytest.skip("the interpreter has no package test, or umf.pth is not installed")
    assert done.returncode == 0, done.stdout + done.stderr
