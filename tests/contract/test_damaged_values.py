"""A stored value that is damaged or forged is an error, and runs nothing."""

from __future__ import annotations

import importlib
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage

from perdure import Saver
from perdure.errors import Damaged, TypeNotAllowed, WrongKey
from tests.support import samples as s
from tests.support import sweep
from tests.support.raw import LONG, config, execute, put, rewrite, values_of
from tests.support.sqlite_only import url as url

SAMPLES = "tests.support.samples"


FUNCTIONS = [
    ("os", "system"), ("posix", "system"), ("builtins", "eval"), ("subprocess", "run"),
    (SAMPLES, "leave_a_mark"),
]  # fmt: skip
CLASSES = [
    ("subprocess", "Popen"), ("pathlib", "PosixPath"), (SAMPLES, "Unknown"), (SAMPLES, "BaseModel"),
]  # fmt: skip
FORGED = [
    *((*one, False) for one in FUNCTIONS + CLASSES),
    *((*one, True) for one in FUNCTIONS),
]
"""What a row may name instead of the type that was stored, and whether somebody allowed it."""


UPDATE = {
    "model": s.Model(n=1, deep=[s.Mode.FAST]),
    "holders": [s.Plain("a", [1])],
    "by_color": {s.Color.RED: s.Outer.Inner(2)},
    "mode": s.Mode.FAST,
}


def forge(url: str, module: str, name: str, state: str) -> None:
    """Store a value whose row is right in all but one thing: that its type has this name."""

    kind = make_dataclass(name, [("state", str)])
    kind.__module__, kind.__qualname__ = module, name
    home = importlib.import_module(module)
    with pytest.MonkeyPatch.context() as patch, Saver(url, allow=[(module, name)]) as saver:
        patch.setattr(home, name, kind, raising=False)
        put(saver, {"x": kind(state), "long": LONG})


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that exists if code of a forged row ran."""
    mark = tmp_path / "mark"
    monkeypatch.setenv("PERDURE_TEST_MARK", str(mark))
    return mark


@pytest.mark.parametrize(("module", "name", "allowed"), FORGED)
def test_a_forged_row_is_an_error_and_runs_nothing(
    url: str, mark: Path, module: str, name: str, allowed: bool
) -> None:
    """A function is refused even if somebody allowed its name."""
    forge(url, module, name, f"touch {mark}")
    allow: list[Any] = [s.Model, *([(module, name)] if allowed else [])]
    with Saver(url, allow=allow) as saver:
        for _ in range(2):
            with pytest.raises((TypeNotAllowed, Damaged), match="thread 't'"):
                saver.get_tuple(config())
            with pytest.raises((TypeNotAllowed, Damaged)):
                list(saver.list(config()))
        put(saver, {"x": LONG}, "other")
        assert values_of(saver, config("other")) == {"x": LONG}
    assert not mark.exists()


@pytest.mark.parametrize("table", ["perdure_checkpoints", "perdure_values", "perdure_writes"])
@pytest.mark.parametrize(
    "change",
    [
        lambda blob: b"",
        lambda blob: blob[:1],
        lambda blob: blob[:-1],
        lambda blob: blob + b"\x00",
        lambda blob: b"garbage" * 9,
        lambda blob: b"\x01" + bytes(4) + blob[5:],
        lambda blob: blob[:5],
    ],
    ids=["empty", "first byte", "cut", "longer", "garbage", "no checksum", "no content"],
)
def test_a_damaged_blob_is_damaged_never_absent_and_other_threads_go_on(
    url: str, table: str, change: Any
) -> None:
    with Saver(url) as saver:
        where = put(saver, {"x": LONG})
        saver.put_writes(where, [("x", LONG)], "task")
    column = "state" if table == "perdure_checkpoints" else "body"
    rewrite(url, table, column, change)
    with Saver(url) as saver:
        put(saver, {"x": LONG}, "other")
        for _ in range(2):
            with pytest.raises(Damaged, match="thread 't'"):
                saver.get_tuple(config())
        assert values_of(saver, config("other")) == {"x": LONG}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, bytes]]:
    url = f"sqlite:///{tmp_path_factory.mktemp('flips')}/journal.db"
    with Saver(url) as saver:
        where = put(saver, {"x": [HumanMessage(LONG), {"a": (1, 2)}], "small": 5, "text": LONG})
        saver.put_writes(where, [("x", [HumanMessage("new")]), ("y", LONG)], "task")
    blobs: dict[str, bytes] = {}
    for table, column in (("checkpoints", "state"), ("values", "body"), ("writes", "body")):
        for (blob,) in execute(url, f"SELECT {column} FROM perdure_{table}"):
            blobs[f"{table} {column} {len(blobs)}"] = bytes(blob)
    return url, blobs


@settings(
    max_examples=sweep.examples(150, 60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_flipped_bits_are_damage_never_a_wrong_value(
    stored: tuple[str, dict[str, bytes]], data: st.DataObject
) -> None:
    url, blobs = stored
    name = data.draw(st.sampled_from(sorted(blobs)))
    blob = bytearray(blobs[name])
    flips = data.draw(st.sets(st.integers(0, len(blob) * 8 - 1), min_size=1, max_size=3))
    for bit in flips:
        blob[bit // 8] ^= 1 << bit % 8
    table, column, _ = name.split()
    sql = f"UPDATE perdure_{table} SET {column} = ? WHERE {column} = ?"
    execute(url, sql, bytes(blob), blobs[name])
    try:
        # Two flips can turn the first byte into the sign of encryption.
        expected = Damaged if blob[0] != 2 else WrongKey
        with Saver(url) as saver, pytest.raises(expected, match="thread 't'"):
            saver.get_tuple(config())
    finally:
        execute(url, sql, blobs[name], bytes(blob))
