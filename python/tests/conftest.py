"""Says in one line each what was skipped, and finds the software drivers."""

import os
import pathlib

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints a line for each reason, and the tests of a file that it concerns."""
    skipped: dict[tuple[str, str], int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        file = pathlib.Path(report.nodeid.partition("::")[0]).name
        key = file, str(reason).removeprefix("Skipped: ")
        skipped[key] = skipped.get(key, 0) + 1
    for (file, reason), number in skipped.items():
        terminalreporter.write_line(f"umf-skip: python: {number} of {file}: {reason}")


def software_driver(name: str) -> pathlib.Path:
    """Returns a software driver (`cuda` or `ze`), or skips the test.

    It lies in the folder that SOFTWARE_DRIVERS names, or where cargo builds it.
    """
    file = f"lib{name}_soft.so"
    root = pathlib.Path(__file__).resolve().parents[2]
    targets = [root / "target", os.environ.get("CARGO_TARGET_DIR")]
    # `cargo test` leaves it in `deps`.
    kinds = ("debug", "debug/deps", "release", "release/deps")
    folders = [pathlib.Path(target, kind) for target in targets if target for kind in kinds]
    if given := os.environ.get("SOFTWARE_DRIVERS"):
        folders = [pathlib.Path(given)]
    for folder in folders:
        if (folder / file).exists():
            return folder / file
    package = {"cuda": "cuda-soft", "ze": "level-zero-soft"}[name]
    pytest.skip(f"there is no {file}: cargo build -p {package}, or set SOFTWARE_DRIVERS")
