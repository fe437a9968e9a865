"""Each published advisory about LangGraph's checkpoint layer, as a test that it is not ours too."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import ormsgpack
import pytest

import perdure
from perdure import Saver
from perdure.checkpoint.values import RowKind
from perdure.errors import Damaged, Error, TypeNotAllowed, Unserializable
from tests.checkpoint.forged import forge_value
from tests.support import samples as s
from tests.support.raw import LONG, config, execute, put, rewrite, values_of

TABLES = ("perdure_checkpoints", "perdure_values", "perdure_writes")


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that exists if code of a forged row ran."""
    mark = tmp_path / "mark"
    monkeypatch.setenv("PERDURE_TEST_MARK", str(mark))
    return mark


class Bomb:
    """Pickles to a call."""

    def __reduce__(self) -> Any:
        return s.leave_a_mark, ()


@pytest.mark.parametrize(
    "key",
    [
        "a' OR '1'='1", "a') OR 1=1 --", "x') UNION SELECT thread_id FROM perdure_checkpoints --",
        "a; DROP TABLE perdure_checkpoints", "$.a", 'a"b', "a%", ":thread_id", "?", "{each_ref}",
        "%s", "%(a)s", "\\", "a\x00b", "",
    ],
)  # fmt: skip
def test_cve_2025_67644_filter_keys_and_values_are_data_never_sql(url: str, key: str) -> None:
    with Saver(url) as saver:
        put(saver, {"x": 1}, "mine", metadata={"source": "update", key: key})
        put(saver, {"x": 2}, "yours", metadata={"source": "update", "step": 1})

        def found(filter: dict[str, Any]) -> list[str]:
            return [t.config["configurable"]["thread_id"] for t in saver.list(None, filter=filter)]

        (own,) = list(saver.list(config("mine")))
        kept = dict(own.metadata).get(key)
        assert kept == key.replace("\x00", "")  # LangGraph itself strips NUL from metadata
        assert found({key: kept}) == ["mine"]
        assert found({key: "other"}) == []
        assert found({"step": key}) == []
        assert found({"source": "update"}) == ["yours", "mine"]
    for table in TABLES:
        execute(url, f"SELECT count(*) FROM {table}")


@pytest.mark.parametrize("lc", [1, 2])
def test_cve_2025_64439_a_json_row_cannot_name_a_constructor(url: str, mark: Path, lc: int) -> None:
    evil = {"lc": lc, "type": "constructor", "id": ["os", "system"], "args": [f"touch {mark}"]}
    evil |= {"kwargs": {}, "method": [None, "__call__"]}
    with Saver(url) as saver:
        put(saver, {"x": evil, "y": LONG})
        with pytest.raises(Error, match="'json' is not perdure's"):
            saver.serde.loads_typed(("json", json.dumps(evil).encode()))
    with Saver(url) as saver:
        assert values_of(saver) == {"x": evil, "y": LONG}  # what was stored, as it was stored
    rewrite(url, "perdure_values", "body", lambda _: json.dumps(evil).encode())
    with Saver(url) as saver, pytest.raises(Damaged):
        saver.get_tuple(config())
    assert not mark.exists()


def test_cve_2025_64439_a_lone_surrogate_does_not_fall_back_to_another_format(url: str) -> None:
    with Saver(url) as saver:
        with pytest.raises(Unserializable, match="lone surrogate"):
            put(saver, {"x": "\ud800"})
        assert saver.get_tuple(config()) is None


def test_cve_2026_27794_nothing_is_pickled_or_unpickled(url: str, mark: Path) -> None:
    with Saver(url) as saver:
        with pytest.raises(Unserializable, match="Bomb"):
            put(saver, {"x": Bomb()})
        with pytest.raises(Error, match="'pickle' is not perdure's"):
            saver.serde.loads_typed(("pickle", pickle.dumps(Bomb())))
        put(saver, {"x": LONG})
    # One byte in front, as a pickle's own first byte is a whole (and empty) msgpack value.
    forge_value(url, b"\xc1" + pickle.dumps(Bomb()))
    with Saver(url) as saver, pytest.raises(Damaged):
        saver.get_tuple(config())
    forge_value(url, pickle.dumps(Bomb()))
    with Saver(url) as saver:
        assert values_of(saver) == {"x": {}}
    assert not mark.exists()


def test_cve_2026_27794_no_module_of_ours_imports_pickle() -> None:
    for file in Path(perdure.__file__).parent.rglob("*.py"):
        assert "pickle" not in file.read_text(), file


@pytest.mark.parametrize("code", range(8))
def test_cve_2026_28277_a_msgpack_row_cannot_name_a_callable(
    url: str, mark: Path, code: int
) -> None:
    """LangGraph's extension types hold (module, name, argument, method)."""
    with Saver(url, allow=[s.Model]) as saver:
        put(saver, {"x": LONG})
    for body in (
        ["os", "system", f"touch {mark}"],
        ["os", "system", [f"touch {mark}"], "__call__"],
        ["tests.support.samples", "leave_a_mark", {}],
        ["tests.support.samples", "Model", f"touch {mark}", "model_validate"],
    ):
        forge_value(url, ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb(body))))
        with Saver(url, allow=[s.Model]) as saver, pytest.raises((TypeNotAllowed, Damaged)):
            saver.get_tuple(config())
    assert not mark.exists()


def test_cve_2026_48775_plain_data_is_never_revived_as_an_object(url: str, mark: Path) -> None:
    """There, JSON rows were revived as objects beyond what the application expected."""
    shapes: list[Any] = [
        {
            "lc": 2,
            "type": "constructor",
            "id": ["tests", "support", "samples", "Unknown"],
            "kwargs": {"n": 1},
        },
        {"__class__": "tests.support.samples.Unknown", "n": 1},
        {"py/object": "tests.support.samples.Unknown"},
        ["tests.support.samples", "Unknown", [{"n": 1}]],
        b"\xc7\x00\x02",
    ]
    with Saver(url, allow=[s.Unknown]) as saver:
        where = put(saver, {"x": shapes, "y": shapes[0]})
        saver.put_writes(where, [("x", shapes)], "task")
    with Saver(url, allow=[s.Unknown]) as saver:
        found = saver.get_tuple(config())
        assert found is not None
        assert found.checkpoint["channel_values"] == {"x": shapes, "y": shapes[0]}
        assert found.pending_writes == [("task", "x", shapes)]
    assert not mark.exists()


ODD_IDS = [
    "../t",
    "t/..",
    "t/../u",
    "t%2F",
    "%",
    "_",
    "t?x=1",
    "t#",
    "*",
    "T",
    "t ",
    "t|u",
    "'",
    "t\n",
]


def test_cve_2026_48776_an_id_addresses_its_own_rows_whatever_is_in_it(url: str) -> None:
    """There, ids from users were put into URL paths, and could address another resource."""
    with Saver(url) as saver:
        ids = ["t", "u", *ODD_IDS]
        for id in ids:
            put(saver, {"x": id, "long": id + LONG}, id)
        for id in ids:
            assert values_of(saver, config(id)) == {"x": id, "long": id + LONG}
            assert len(list(saver.list(config(id)))) == 1
        for id in ODD_IDS:
            saver.prune([id], strategy="delete")
            saver.delete_thread(id)
            saver.delete_for_runs([id])
            saver.copy_thread(id, "nobody")
            with pytest.raises(Error):
                saver.copy_thread(id, id)
            assert saver.get_tuple(config(id)) is None
            assert saver.get_tuple(config("t", ns=id)) is None
            assert saver.get_tuple(config("t", id=id)) is None
        assert {t.config["configurable"]["thread_id"] for t in saver.list(None)} == {"t", "u"}


def test_a_row_kind_that_does_not_exist_is_damaged(url: str) -> None:
    with Saver(url) as saver:
        put(saver, {"x": LONG})
    for kind in (5, 77, 255):
        forge_value(url, ormsgpack.packb([1]), kind)
        with Saver(url) as saver, pytest.raises(Damaged):
            saver.get_tuple(config())
    forge_value(url, b"", RowKind.WHOLE)
    with Saver(url) as saver, pytest.raises(Damaged):
        saver.get_tuple(config())
