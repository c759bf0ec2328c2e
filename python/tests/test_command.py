"""The `umf` command of the package behaves as the native one: arguments, exit codes, signals."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import types
from pathlib import Path
from typing import Any

import pytest

import umf
from umf import __main__

COMMAND = [sys.executable, "-m", "umf"]


def run(*arguments: str | bytes, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )


def test_console_script_is_installed() -> None:
    script = Path(sysconfig.get_path("scripts")) / "umf"
    if not script.exists():
        pytest.skip("console script: the package is not installed")
    done = subprocess.run(
        [script, "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"umf {umf.__version__}\n"


def test_help_lists_all_commands() -> None:
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("config", "demo", "gc", "info", "keep", "pool-map", "ps", "top", "why"):
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [[], ["nothing"], ["ps", "--nothing"], ["demo", "--ranks", "x"], [b"\xff"], ["why", "a", "b"]],
    ids=str,
)
def test_wrong_arguments_exit_with_2(arguments: list[str | bytes]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "") and "--help" in done.stderr


def test_failure_exits_with_1_and_wrong_settings_with_2() -> None:
    done = run("why", "umf1.wrong")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("umf: unknown: not a handle")
    done = run("config", env=os.environ | {"UMF_IPC_EXCHANGE": "pigeon"})
    assert done.returncode == 2 and "UMF_IPC_EXCHANGE" in done.stderr


def test_why_prints_what_umf_why_returns() -> None:
    block = umf.Pool.shared().allocate(64)
    handle = str(block.handle())
    block.free()
    done = run("why", "-", input=handle)
    assert done.returncode == 0 and done.stdout.startswith("stale: freed")


def test_ps_shows_this_process() -> None:
    block = umf.Pool.shared().allocate(64)
    block.handle()
    done = run("ps", "--json")
    assert done.returncode == 0, done.stderr
    assert os.getpid() in [process["pid"] for process in json.loads(done.stdout)["processes"]]


def test_subcommands_start_this_program_again(tmp_path: Path) -> None:
    # A folder that would be imported instead, if children looked into the working directory.
    (tmp_path / "umf").mkdir()
    (tmp_path / "umf" / "__init__.py").write_text("raise SystemExit('wrong module')")
    command = [
        *__main__._start(),
        "demo",
        "--ranks",
        "2",
        "--blocks",
        "4",
        "--size",
        "4KiB",
        "--json",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


def test_info_tries_transfers_with_children() -> None:
    done = run("info", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert "could not be tried" not in done.stdout


def test_interrupt_ends_by_the_signal() -> None:
    child = subprocess.Popen(
        [*COMMAND, "why", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    # The command waits in a read of its standard input.
    status = Path(f"/proc/{child.pid}/wchan")
    caught = f"/proc/{child.pid}/status"
    for _ in range(3000):
        mask = next(line for line in Path(caught).read_text().splitlines() if "SigCgt" in line)
        if "pipe" in status.read_text() and not int(mask.split()[1], 16) & 1 << signal.SIGINT - 1:
            break
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert (child.returncode, errors) == (-signal.SIGINT, b"")


def test_ignored_interrupt_stays_ignored() -> None:
    source = "import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(*ARGUMENTS)"
    source = source.replace("*ARGUMENTS", f"{sys.executable!r}, {[*COMMAND, 'why', '-']!r}")
    child = subprocess.Popen(
        [sys.executable, "-c", source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    status = Path(f"/proc/{child.pid}/wchan")
    for _ in range(3000):
        if "pipe" in status.read_text():
            break
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate("text", timeout=60)
    assert child.returncode == 1 and "not a handle" in errors


def test_closed_pipe_is_a_success() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*COMMAND, "config", "--template"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_full_disk_is_a_failure() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "config", "--template"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1 and done.stderr.startswith("umf: cannot print")


def test_closed_descriptors_are_not_written_to(tmp_path: Path) -> None:
    shell = shutil.which("sh")
    assert shell is not None
    script = f"exec {' '.join(COMMAND)} ps 0<&- 1>&- 2>&-"
    done = subprocess.run([shell, "-c", script], cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_keep_is_a_module_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []

    def main(arguments: list[str]) -> int:
        given.append(arguments)
        return 3

    monkeypatch.setitem(sys.modules, "umf.keep", types.SimpleNamespace(main=main))
    assert __main__.main(["keep", "name", "--list"]) == 3
    assert __main__.main(["help", "keep"]) == 3
    assert given == [["name", "--list"], ["--help"]]
