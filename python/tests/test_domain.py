"""Domains: memory that outlives the process that made it."""

import math
import os
import subprocess
import sys

import numpy
import pytest

import umf
from umf.domain import Domain


@pytest.fixture
def name() -> str:
    return f"test-{os.getpid()}-{os.urandom(4).hex()}"


CHILD = """
import sys
from umf.domain import Domain
domain = Domain(sys.argv[1])
memory = domain.attach("table", 8192)
view = memoryview(memory)
view[0] += 1
print(view[0], len(memory), len(domain.objects()), flush=True)
sys.stdin.read()
"""


def attach(name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def first_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline()


def end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate(timeout=60)


def test_memory_lasts_until_its_last_process_is_killed(name: str) -> None:
    first = attach(name)
    assert first_line(first) == "1 8192 1\n"
    second = attach(name)
    assert first_line(second) == "2 8192 1\n"
    end(first)
    third = attach(name)
    assert first_line(third) == "3 8192 1\n"
    end(second)
    end(third)
    last = attach(name)
    assert first_line(last) == "1 8192 1\n"
    end(last)


def test_lookup_finds_by_name(name: str) -> None:
    domain = Domain(name)
    with pytest.raises(umf.DomainError, match="attach with a size"):
        domain.lookup("table")
    made = domain.attach("table", 100)
    numpy.frombuffer(made, "u1")[:] = 7
    found = Domain(name).lookup("table")
    assert found.id == made.id and numpy.frombuffer(found, "u1").min() == 7
    assert len(domain.attach("table", 4096)) == 4096
    with pytest.raises(umf.DomainError, match="4096 bytes"):
        domain.attach("table", 4097)
    assert domain.register(domain.create(5).id).is_registered is True


def test_object_without_registrants_is_gone(name: str) -> None:
    domain = Domain(name)
    made = domain.create(100)
    view = memoryview(made)
    view[0] = 9
    made.unregister()
    assert view[0] == 9 and not made.is_registered
    with pytest.raises(umf.DomainError, match="has no object"):
        domain.register(made.id)
    with pytest.raises(umf.DomainError, match="not registered"):
        made.unregister()


def test_child_of_a_fork_reads_and_has_to_join(name: str) -> None:
    domain = Domain(name)
    made = domain.attach("table", 100)
    view = memoryview(made)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            view[0] = 5
            domain.attach("table", 100)
        except umf.ForkError:
            again = Domain(name).lookup("table")
            code = 0 if memoryview(again)[0] == 5 and not made.is_registered else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert view[0] == 5 and made.is_registered


@pytest.mark.parametrize("wrong", ["", "a" * 65, "a b", "ä"])
def test_wrong_name_names_the_rule(wrong: str) -> None:
    with pytest.raises(umf.DomainError, match="1 to 64 letters"):
        Domain(wrong)


def test_wrong_arguments(name: str) -> None:
    domain = Domain(name)
    with pytest.raises(umf.DomainError, match="0 bytes"):
        domain.create(0)
    with pytest.raises(umf.DomainError):
        domain.create(sys.maxsize)
    with pytest.raises(umf.DomainError):
        domain.register(12345)
    with pytest.raises((OverflowError, ValueError)):
        domain.create(-1)
    for timeout in (-1.0, math.nan, math.inf, 1e300):
        with pytest.raises(ValueError, match="timeout"):
            Domain(name + "x", timeout=timeout)
