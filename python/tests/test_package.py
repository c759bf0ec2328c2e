"""What is built and published: types, stubs, the wheel, the source distribution."""

import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import umf
from umf import _umf

HERE = Path(__file__).parents[1]


def run(*command: str, where: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=where,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def need(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


def distribution(variable: str) -> Path:
    """Returns the file that a variable names. `python/test` sets it."""
    if variable not in os.environ:
        pytest.skip(f"{variable} does not name a file: run python/test")
    return Path(os.environ[variable])


def test_package_is_typed(tmp_path: Path) -> None:
    need("mypy")
    # Beside the sources, not the installed package: mypy reports errors of no other.
    done = run(
        *(sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path)),
        *("umf", "examples"),
        where=HERE,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_stub_and_extension_have_the_same_names_and_signatures(tmp_path: Path) -> None:
    need("mypy")
    allowed = tmp_path / "allowed"
    # A slot of the C interface, which Python names from 3.12 on; and a list that PyO3 adds.
    allowed.write_text("umf\\._umf\\.\\w+\\.__(release_)?buffer__\numf\\._umf\\.__all__\n")
    done = run(
        *(sys.executable, "-m", "mypy.stubtest", "umf._umf", "--ignore-disjoint-bases"),
        *("--allowlist", str(allowed), "--ignore-unused-allowlist"),
        where=tmp_path,
        PYTHONPATH=str(Path(umf.__file__).parents[1]),
        MYPY_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_names_exist_and_have_text() -> None:
    for name in umf.__all__:
        found = getattr(umf, name)
        assert name == "__version__" or found.__doc__, name


def test_sources_are_formatted() -> None:
    need("ruff")
    for command in (("check",), ("format", "--check")):
        done = run(sys.executable, "-m", "ruff", *command, ".", where=HERE)
        assert done.returncode == 0, done.stdout + done.stderr


def test_reference_is_written_without_warnings(tmp_path: Path) -> None:
    need("pdoc")
    done = run(
        str(HERE / "doc"),
        str(tmp_path),
        where=HERE,
        PATH=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ArrayHandle" in (tmp_path / "umf.html").read_text()


def symbols(library: Path) -> set[str]:
    done = run("nm", "-D", "--defined-only", str(library), where=library.parent)
    assert done.returncode == 0, done.stderr
    return {line.split()[-1] for line in done.stdout.splitlines()}


def test_extension_exports_no_symbol_but_its_entry() -> None:
    assert symbols(Path(str(_umf.__file__))) == {"PyInit__umf"}


def test_wheel_has_the_module_and_nothing_of_c(tmp_path: Path) -> None:
    wheel = distribution("TESTS_WHEEL")
    assert re.fullmatch(r"umf_rs-[0-9.]+-cp311-abi3-\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
        text = archive.read(metadata).decode()
        [entries] = [name for name in names if name.endswith("entry_points.txt")]
        scripts = archive.read(entries).decode()
    sources = {f"umf/{file.name}" for file in HERE.glob("umf/*.py*")}
    assert sources | {"umf/_umf.pyi", "umf/py.typed", "umf/_umf.abi3.so"} <= set(names)
    libraries = [name for name in names if ".so" in name]
    assert libraries == ["umf/_umf.abi3.so"]
    [data] = {name.partition("/")[0] for name in names if ".data/" in name}
    installed = {name.removeprefix(f"{data}/") for name in names if name.startswith(data)}
    assert {f"purelib/{file.name}" for file in HERE.glob("umf_rs.data/*/*.p*")} <= installed
    assert not [name for name in names if name.endswith((".h", ".a", ".rs", ".toml"))]
    assert {Path(name).name for name in names if "/licenses/" in name} == {
        "LICENSE-MIT",
        "LICENSE-APACHE",
    }
    assert "\nLicense-Expression: MIT OR Apache-2.0\n" in text
    assert "umf=umf.__main__:main" in scripts.replace(" ", "")
    needed = re.findall(r"^Requires-Dist: (?!.*extra ==)(.*)$", text, re.MULTILINE)
    assert [name.replace(" ", "") for name in needed] == ["numpy>=1.24"]


def test_source_distribution_has_what_its_build_needs(tmp_path: Path) -> None:
    archive = distribution("TESTS_SDIST")
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
        files.extractall(tmp_path, filter="data")
    needed = {"pyproject.toml", "python/Cargo.toml", "python/Cargo.lock", "LICENSE-MIT"}
    needed |= {"umf/_umf.pyi", "umf/py.typed", "crates/umf/src/lib.rs"}
    needed |= {f"umf/{file.name}" for file in HERE.glob("umf/*.py")}
    needed |= {str(file.relative_to(HERE)) for file in HERE.glob("umf_rs.data/*/*.p*")}
    assert needed <= names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]
    # The first step of its build, which finds all crates and folders.
    [folder] = tmp_path.iterdir()
    done = run(
        *("maturin", "pep517", "write-dist-info", "--metadata-directory", str(tmp_path)),
        *("--interpreter", sys.executable),
        where=folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr


IN_SUBINTERPRETER = """
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
source = '''
try:
    import umf
except ImportError as error:
    text = str(error)
else:
    text = "imported"
open(PATH, "w").write(text)
'''.replace("PATH", repr(sys.argv[1]))
for config in ("isolated", "legacy"):
    try:
        made = interpreters.create(config)
    except TypeError:
        made = interpreters.create(isolated=config == "isolated")
    interpreters.run_string(made, source)
    interpreters.destroy(made)
    print(open(sys.argv[1]).read())
"""


@pytest.mark.parametrize("is_imported", [False, True], ids=["first", "second"])
def test_subinterpreter_is_refused(is_imported: bool, tmp_path: Path) -> None:
    source = ("import umf\n" if is_imported else "") + IN_SUBINTERPRETER
    done = run(sys.executable, "-c", source, str(tmp_path / "text"), where=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("cannot import umf in a sub-interpreter: "), line
