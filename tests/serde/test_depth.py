"""A value that is nested too deeply is refused, by an error and not by the end of the process."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import Unserializable
from perdure.serde.serializer import FEW, Serializer, depth_at_most

FORGED = """
import sys, threading
import ormsgpack
from perdure.errors import Damaged
from perdure.serde.serializer import Serializer

def forged(objects, lists, wrap):
    data = b"\\xc0"
    for _ in range(objects):
        body = b"".join([wrap[0] * lists, data, wrap[1] * lists])
        data = ormsgpack.packb(ormsgpack.Ext(4, body))
    return data

refused = read = 0
def attack():
    global refused, read
    for objects, lists in [
        (1, 1000), (1, 5000), (1, 10**6), (4, 1000), (10, 255), (16, 1000), (30, 250), (150, 100),
        (190, 1000), (201, 0), (400, 1), (1000, 0), (3000, 3), (20000, 0), (100, 1020),
    ]:
        for wrap in [(b"\\x91", b""), (b"\\x92\\xc0", b""), (b"\\x92", b"\\xc0"),
                     (b"\\x81\\xa1k", b""), (b"\\x94\\x90\\x80\\xa0", b"")]:
            try:
                Serializer().decode(forged(objects, lists, wrap), "a row")
                read += 1
            except Damaged:
                refused += 1

threading.stack_size(8 * 1024 * 1024)
thread = threading.Thread(target=attack)
thread.start()
thread.join()
attack()
print(refused, read)
"""


@pytest.mark.slow
def test_a_forged_value_never_ends_the_process_that_reads_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORGED], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    refused, read = map(int, done.stdout.split())
    assert refused + read == 2 * 15 * 5
    assert refused >= 100


@dataclass
class Box:
    inner: Any


def boxed(objects: int, lists: int) -> Any:
    value: Any = None
    for _ in range(objects):
        for _ in range(lists):
            value = [value]
        value = Box(value)
    return value


@pytest.mark.parametrize(
    ("objects", "lists"), [(1, 199), (16, 252), (199, 0), (99, 1), (60, 2), (17, 9)]
)
def test_what_is_stored_can_be_read(objects: int, lists: int) -> None:
    codec, value = Serializer([Box]), boxed(objects, lists)
    found = codec.decode(codec.encode(value, "x"), "x")
    for _ in range(objects):
        assert isinstance(found, Box)
        found = found.inner
        for _ in range(lists):
            [found] = found


@pytest.mark.parametrize(
    ("objects", "lists"), [(1, 256), (18, 252), (201, 0), (150, 100), (1, 100_000)]
)
def test_what_is_nested_deeper_is_refused_by_name(objects: int, lists: int) -> None:
    with pytest.raises(Unserializable, match=r"x.*nested"):
        Serializer([Box]).encode(boxed(objects, lists), "x")


nested = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary() | st.floats(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=60,
)


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value
    if not isinstance(value, (list, dict)) or not inner:
        return 0
    return 1 + max(map(_depth, inner))


@given(nested)
def test_the_depth_is_found_without_decoding(value: Any) -> None:
    assert depth_at_most(ormsgpack.packb(value)) >= _depth(value)
    padded = ormsgpack.packb([[]] * 2 * FEW + [value])
    assert depth_at_most(padded) == 1 + _depth(value)
