"""Public names, and handles of arrays as bytes and text."""

import dataclasses
import json
import os
import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy
import pytest

import umf

TYPES = [
    "<f8",
    ">i2",
    "|b1",
    "<c16",
    "|S7",
    "<U3",
    "<M8[ns]",
    "<m8[25s]",
    [("x", "<i4"), ("y", "<f8", (2,))],
    [("a", [("b", "|u1"), ("c", "<f4", (2, 2))], (3,)), ("ä b", ">U1")],
    {"names": ["p", "q"], "formats": ["u1", "f8"], "offsets": [0, 8], "itemsize": 24},
]


def encode(handle: umf.ArrayHandle, **changes: Any) -> bytes:
    """Returns the bytes of a handle of which the description was changed."""
    description = dataclasses.asdict(handle)
    memory = description.pop("handle")
    body = memory + json.dumps(description | changes).encode()
    return struct.pack("<4sHHII", b"UMFA", 1, 0, len(body) - 256, zlib.crc32(body)) + body


@pytest.mark.parametrize("given", TYPES, ids=str)
def test_handle_of_each_type_opens_from_bytes_and_text(given: Any) -> None:
    made = umf.empty((2, 3), given)
    numpy.frombuffer(made, dtype="u1")[:] = 1
    handle = umf.handle(made)
    for source in (handle, bytes(handle), bytearray(bytes(handle)), str(handle), f" {handle}\n"):
        opened = umf.open(source)
        assert opened.dtype == made.dtype and opened.shape == made.shape
        assert opened.tobytes() == made.tobytes()
    assert umf.ArrayHandle.from_bytes(bytes(handle)) == handle


def test_handle_of_a_view_opens_as_that_view() -> None:
    made = umf.array(numpy.arange(24).reshape(4, 6))
    for view in (made[1:, ::2], made.T, made[::-1], made[3], made[:0], made[2, 2:3]):
        opened = umf.open(bytes(umf.handle(view)))
        assert opened.strides == view.strides and (opened == view).all()


def test_opened_array_shares_its_memory() -> None:
    made = umf.zeros(10, "i8")
    opened = umf.open(umf.handle(made))
    opened[3] = 7
    assert made[3] == 7
    again = umf.open(umf.handle(opened))
    made[4] = 8
    assert again[4] == 8


def test_readonly_is_kept_and_can_be_asked_for() -> None:
    made = umf.zeros(10)
    assert umf.open(umf.handle(made)).flags.writeable
    assert not umf.open(umf.handle(made), readonly=True).flags.writeable
    made.flags.writeable = False
    opened = umf.open(bytes(umf.handle(made)))
    assert not opened.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        opened.flags.writeable = True


def test_private_copy_is_writable_and_apart() -> None:
    made = umf.zeros(10, "i8")
    made.flags.writeable = False
    for source in (umf.handle(made), bytes(umf.handle(made))):
        copy = umf.open(source, mode="private")
        copy[0] = 5
        assert made[0] == 0
    assert not umf.open(umf.handle(made), mode="shared").flags.writeable
    with pytest.raises(ValueError, match="contradicts"):
        umf.open(umf.handle(umf.zeros(3)), mode="private", readonly=True)


def test_send_handle_opens_in_another_process_after_del() -> None:
    made = umf.array([1, 2, 3], "i4")
    message = umf.send_handle(made)
    plain = umf.handle(made)
    del made
    with pytest.raises(umf.StaleError):
        umf.open(plain)
    source = "import sys, umf; print(umf.open(sys.argv[1]).sum())"
    child = subprocess.run(
        [sys.executable, "-c", source, str(message)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert child.stdout == "6\n"
    assert umf.drain(5.0) == 0


def test_array_takes_a_type_and_a_pool() -> None:
    pool = umf.Pool.isolated()
    made = umf.array([1, 2], "f4", pool=pool)
    assert made.dtype == numpy.float32 and pool.stats()["live_blocks"] == 1


def test_array_that_no_handle_describes_is_refused() -> None:
    with pytest.raises(TypeError, match="Python objects"):
        umf.empty(3, object)
    made = umf.zeros(16, "u1")
    overlapping = numpy.dtype({"names": ["a", "b"], "formats": ["u4", "u2"], "offsets": [0, 2]})
    with pytest.raises(TypeError, match="plain values"):
        umf.handle(made.view(overlapping))
    with pytest.raises(TypeError, match="asarray"):
        umf.handle(numpy.ma.masked_array(made))
    with pytest.raises(ValueError, match=r"umf\.array"):
        umf.handle(numpy.zeros(3))
    with pytest.raises(ValueError):
        umf.empty(-1)


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "O"},
        {"dtype": "|O8"},
        {"dtype": "i4,i4"},
        {"dtype": "(3,)i4"},
        {"dtype": "<V2147483647"},
        {"dtype": "<V999999999"},
        {"dtype": "<f3"},
        {"dtype": "<M8[xx]"},
        {"dtype": None},
        {"dtype": 5},
        {"dtype": {"names": ["a"], "formats": ["O"]}},
        {"dtype": []},
        {"dtype": [["a", "O"]]},
        {"dtype": [["a", "<i4", [-1]]]},
        {"dtype": [["a", "<i4", [1 << 40, 1 << 40]]]},
        {"dtype": [["a", "<i4"], ["a", "<i4"]]},
        {"dtype": [[["t", "n", "m"], "<i4"]]},
        {"dtype": [[5, "<i4"]]},
        {
            "dtype": [
                ["a", [["b", [["c", [["d", [["e", [["f", [["g", [["h", [["i", "|u1"]]]]]]]]]]]]]]]]]
            ]
        },
        {"shape": [1 << 40]},
        {"shape": [1 << 80]},
        {"shape": [-1]},
        {"shape": [1.0]},
        {"shape": [True]},
        {"shape": 10},
        {"shape": [1] * 65, "strides": [0] * 65},
        {"strides": [8, 8]},
        {"strides": [1 << 62]},
        {"strides": [-8]},
        {"strides": None},
        {"offset": -8},
        {"offset": 1 << 70},
        {"offset": "0"},
        {"readonly": 1},
        {"more": 1},
    ],
    ids=str,
)
def test_hostile_description_is_refused(changes: dict[str, Any]) -> None:
    made = umf.zeros(10, "f8")
    handle = umf.handle(made)
    assert umf.open(encode(handle)).shape == (10,)
    with pytest.raises(umf.HandleError):
        umf.open(encode(handle, **changes))


def test_damaged_bytes_are_refused() -> None:
    made = umf.zeros(10, "f8")
    whole = bytes(umf.handle(made))
    for cut in range(4, len(whole), 7):
        with pytest.raises(umf.HandleError):
            umf.open(whole[:cut])
    with pytest.raises(umf.HandleError):
        umf.open(whole + b" ")
    chance = random.Random(1)
    for _ in range(500):
        damaged = bytearray(whole)
        damaged[chance.randrange(4, len(damaged))] ^= 1 << chance.randrange(8)
        with pytest.raises(umf.HandleError):
            umf.open(bytes(damaged))


@pytest.mark.parametrize(
    "description",
    [b"", b"[" * 60_000, b"nul", b"\xff\xfe", b"[]", b"1" * 5000, b'{"dtype": 1}'],
    ids=lambda text: repr(text[:8]),
)
def test_description_that_is_no_description_is_refused(description: bytes) -> None:
    body = bytes(umf.handle(umf.zeros(10)).handle) + description
    header = struct.pack("<4sHHII", b"UMFA", 1, 0, len(description), zlib.crc32(body))
    with pytest.raises(umf.HandleError):
        umf.open(header + body)


def test_newer_version_names_the_remedy() -> None:
    body = bytes(257)
    with pytest.raises(umf.HandleError, match="same release"):
        umf.open(struct.pack("<4sHHII", b"UMFA", 2, 0, 1, zlib.crc32(body)) + body)


@pytest.mark.parametrize("text", ["umfa1.", "umfa1.*", "umfa1.AAAA", "umfa1.ä", "umfa2.AAAA"])
def test_wrong_text_is_refused(text: str) -> None:
    with pytest.raises(umf.HandleError):
        umf.open(text)


@pytest.mark.parametrize("given", [None, 5, [], object()])
def test_open_of_another_object_names_what_it_takes(given: Any) -> None:
    with pytest.raises(TypeError, match=r"umf\.Handle"):
        umf.open(given)


def test_package_works_without_numpy(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'numpy'\", name='numpy')"
    )
    source = """
import umf
block = umf.Pool.shared().allocate(64)
assert len(umf.open(bytes(block.handle()))) == 64
for name in ("empty", "array", "ArrayHandle", "handle"):
    try:
        getattr(umf, name)
    except ImportError as error:
        assert "pip install numpy" in str(error), error
    else:
        raise SystemExit(name)
try:
    umf.open(b"UMFA")
except ImportError:
    print("ok")
"""
    paths = os.pathsep.join((str(tmp_path), str(Path(umf.__file__).parents[1])))
    child = subprocess.run(
        [sys.executable, "-c", source],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (child.stdout, child.stderr) == ("ok\n", "")


def test_unknown_name_is_an_attribute_error() -> None:
    assert {"empty", "open", "Pool"} <= set(dir(umf))
    with pytest.raises(AttributeError, match="nothing"):
        umf.nothing  # noqa: B018
