"""The programs of README.md, as they stand, and those of the folder `examples`."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from umf.domain import Domain

HERE = Path(__file__).parents[1]
EXAMPLES = HERE / "examples"


def start(*arguments: object, where: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=where,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(program: subprocess.Popen[str], given: str | None = None) -> str:
    try:
        printed, errors = program.communicate(given, timeout=120)
    finally:
        program.kill()
    assert program.returncode == 0, errors
    assert errors == ""
    return printed


@pytest.fixture(scope="module")
def readme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the programs of README.md. Their first lines name them."""
    folder = tmp_path_factory.mktemp("readme")
    text = (HERE / "README.md").read_text()
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        named = re.match(r"# (\w+\.py)\n", block)
        assert named, f"a program without a name: {block[:60]}"
        (folder / named[1]).write_text(block)
    return folder


def test_readme_queue(readme: Path) -> None:
    assert finish(start("queue_sum.py", where=readme)) == "499999500000\n"


def test_readme_handle_in_a_file(readme: Path) -> None:
    writer = start("writer.py", where=readme)
    assert writer.stdout is not None
    prompt = "press enter to end: "
    assert writer.stdout.read(len(prompt)) == prompt
    assert finish(start("reader.py", where=readme)) == "int64 (1000000,) 499999500000\n"
    finish(writer, "\n")
    reader = start("reader.py", where=readme)
    _, errors = reader.communicate(timeout=60)
    assert "umf.ProducerGoneError" in errors


def test_readme_blocks(readme: Path) -> None:
    assert finish(start("blocks.py", where=readme)) == "b'hello'\ncurrent\n"


@pytest.mark.parametrize("is_local", ["true", "false"], ids=["this machine", "another machine"])
def test_readme_other_machines(
    is_local: str, readme: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMF_REMOTE_LOCAL", is_local)
    monkeypatch.setenv("UMF_REMOTE_PROVIDER", "tcp")
    monkeypatch.setenv("UMF_REMOTE_INTERFACE", "127.0.0.1")
    server = start("serve.py", where=readme)
    assert server.stdout is not None
    prompt = "press enter to end: "
    if server.stdout.read(len(prompt)) != prompt:
        _, errors = server.communicate(timeout=60)
        missing = re.search(r"umf\.NotSupportedError: (.*)", errors)
        assert missing, errors
        pytest.skip(missing[1])
    assert finish(start("fetch.py", where=readme)) == "499999500000\n"
    finish(server, "\n")


def test_readme_has_no_other_program(readme: Path) -> None:
    assert {file.name for file in readme.glob("*.py")} == {
        "queue_sum.py",
        "writer.py",
        "reader.py",
        "blocks.py",
        "serve.py",
        "fetch.py",
    }


def test_producer_consumer(tmp_path: Path) -> None:
    printed = finish(start(EXAMPLES / "producer_consumer.py", 20, 1, where=tmp_path))
    assert printed == "20 arrays of 1 MiB arrived; bytes still held: 0\n"


def test_file_handle(tmp_path: Path) -> None:
    file = tmp_path / "handle"
    writer = start(EXAMPLES / "file_handle.py", "write", file, where=tmp_path)
    read = finish(start(EXAMPLES / "file_handle.py", "read", file, where=tmp_path))
    assert read == "read int64 (1000000,): sum 499999500000\n"
    assert finish(writer).endswith("the reader wrote 42\n")


def test_mpi4py_handles(tmp_path: Path) -> None:
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("examples/mpi4py_handles.py: there is no mpirun")
    command = [mpirun, "-n", "3", sys.executable, str(EXAMPLES / "mpi4py_handles.py")]
    # Open MPI refuses root, and more ranks than processors.
    variables = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    skip = re.search(r"umf-skip: python: (.*)", done.stdout)
    if skip:
        pytest.skip(skip[1])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3 ranks read 3 arrays of 8000000 bytes: sum 6000000\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "model.npz"
    # The digest of each run differs, so that memory of another run does not count.
    none = numpy.zeros((0, 1 + int.from_bytes(os.urandom(4), "little")), "f4")
    numpy.savez(file, layer=numpy.ones((64, 64), "f4"), bias=numpy.arange(10), none=none)
    return file


def weights(model: Path, *more: str) -> subprocess.Popen[str]:
    return start(EXAMPLES / "weights.py", model, *more, where=model.parent)


def test_weights_are_loaded_once_and_outlive_their_loader(model: Path) -> None:
    total = "3 arrays, sum 4141\n"
    loader = weights(model, "--hold")
    assert loader.stdout is not None and loader.stdout.readline() == f"loaded {total}"
    other = weights(model, "--hold")
    assert other.stdout is not None and other.stdout.readline() == f"attached {total}"
    loader.kill()
    loader.wait()
    assert finish(weights(model)) == f"attached {total}"
    finish(other, "")
    assert finish(weights(model)) == f"loaded {total}"


def test_weights_that_were_loaded_in_part_are_loaded_again(model: Path) -> None:
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    memory = Domain("weights").attach(digest, 1 << 16)
    memoryview(memory)[100:200] = b"x" * 100
    assert finish(weights(model)) == "loaded 3 arrays, sum 4141\n"
    assert finish(weights(model)) == "attached 3 arrays, sum 4141\n"
    memoryview(memory)[0] ^= 1
    assert finish(weights(model)) == "loaded 3 arrays, sum 4141\n"


def test_no_program_has_the_name_of_a_standard_module() -> None:
    names = {file.stem for file in EXAMPLES.glob("*.py")}
    assert names and not names & sys.stdlib_module_names
