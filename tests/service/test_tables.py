"""Flat tables have the same columns and types whatever is in them, and no content unless asked."""

from __future__ import annotations

import csv
import io
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas
import pytest

import perdure
from perdure.cli import main
from perdure.errors import BadArgument, Error
from perdure.service import frames, records
from perdure.service.views.tables import Table, columns
from perdure.types import Retry, Run
from tests.support.agents import Log, chain, opened

SECRET = "hunter2"


async def made(rt: Any) -> Run:
    """A run that has a record of every kind, content in all of them."""

    @perdure.effect(retry=Retry(attempts=1))
    def call(what: str) -> str:
        raise ValueError(SECRET)

    @perdure.effect
    def look(what: str) -> dict[str, Any]:
        return {"found": {SECRET, 1}, "at": datetime(2030, 1, 1, tzinfo=UTC)}

    def work(state: Log) -> Log:
        look(SECRET)
        perdure.sleep(timedelta(days=1))
        answer = perdure.ask({"question": SECRET})
        call(answer)
        return {"log": []}

    rt.register(chain(work), name="g", retry=Retry(attempts=1))
    run: Run = await rt.start("g", {"log": [SECRET]}, metadata={"team": "blue"}, tags=["a", "b"])
    await rt.tick()
    rt.clock.advance(timedelta(days=2))
    await rt.tick()
    [wait] = await rt.waits()
    await rt.answer(wait.id, SECRET, by="ada")
    await rt.tick()
    await rt.score(run.id, "good", 0.5, comment=SECRET)
    return await rt.get(run.id)  # type: ignore[no-any-return]


async def test_frames_have_fixed_dtypes_and_survive_parquet(url: str, tmp_path: Path) -> None:
    async with opened(url) as rt:
        empty = {what: await rt.frame(what, content=True) for what in Table}
        run = await made(rt)
        await rt.start("g", {"log": []}, thread_id="other")
        plain = {what: await rt.frame(what.value, run_id=run.id) for what in Table}
        whole = {what: await rt.frame(what, content=True, state="failed") for what in Table}
        events = await rt.events(run.id)
        with pytest.raises(BadArgument, match="not both"):
            await rt.frame("runs", run_id=run.id, graph="g")
        with pytest.raises(BadArgument, match="not a table"):
            await rt.frame("steps")
        assert len(await rt.frame("runs", metadata={"team": "blue"})) == 1
        assert len(await rt.frame("runs")) == 2
    for what in Table:
        assert list(plain[what].columns) == [one.name for one in columns(what, content=False)]
        assert plain[what].columns.is_unique
        assert SECRET not in plain[what].to_csv()
        assert SECRET in whole[what].to_csv()
        assert (empty[what].dtypes == whole[what].dtypes).all()
        assert len(empty[what]) == 0
        assert len(plain[what]) > 0
        whole[what].to_parquet(tmp_path / "it.parquet")
        pandas.testing.assert_frame_equal(pandas.read_parquet(tmp_path / "it.parquet"), whole[what])
    told = plain[Table.EVENTS]
    assert [(row.n, row.kind, row.at) for row in told.itertuples()] == [
        (event.n, event.kind, event.at) for event in events
    ]
    assert told[told.kind == "claimed"].segment.tolist() == [1, 2, 3]
    [row] = whole[Table.RUNS].to_dict("records")
    assert json.loads(row["input"]) == {"log": [SECRET]}
    assert (row["error_kind"], row["error_message"]) == ("ValueError", SECRET)
    assert (row["segments"], row["saved_effects"], row["tags"]) == (
        3,
        2,
        '["a", "b", "runtime:cron"]',
    )
    assert row["created_at"] == run.created_at


async def test_a_table_is_exported_in_each_format(
    sqlite_url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch of two runs, and of three events: the seams between batches do not show."""
    monkeypatch.setattr(records, "RUNS", 2)
    monkeypatch.setattr(records, "EVENTS", 3)
    async with opened(sqlite_url) as rt:
        run = await made(rt)
        others = [await rt.start("g", {"log": [f"{n}"]}) for n in range(4)]
        frame = await rt.frame("events")
        assert len(frame) == len(await rt.events(run.id)) + 4
        assert frame[frame.run_id == run.id].n.is_monotonic_increasing

    def export(*arguments: str) -> str:
        capsys.readouterr()
        assert main(["export", "--at", sqlite_url, *arguments]) == 0
        return capsys.readouterr().out

    lines = [json.loads(line) for line in export("--what", "events").splitlines()]
    assert [(one["run_id"], one["n"]) for one in lines] == [
        (row.run_id, row.n) for row in frame.itertuples()
    ]
    table = list(csv.DictReader(io.StringIO(export("--what", "runs", "--format", "csv"))))
    assert [row["id"] for row in table] == [one.id for one in (*reversed(others), run)]
    assert "input" not in table[0]
    one = export("--what", "effects", "--content", "--format", "csv", run.id[:-1])
    assert SECRET in one
    file = tmp_path / "runs.parquet"
    assert export("--what", "runs", "-o", str(file)) == f"5 runs written to {file}.\n"
    stored = pandas.read_parquet(file)
    assert list(stored.id) == [row["id"] for row in table]
    assert str(stored.created_at.dtype) == "datetime64[ms, UTC]"
    for refused in (["--format", "csv"], ["--content"], ["--what", "runs", "--format", "parquet"]):
        assert main(["export", "--at", sqlite_url, *refused]) == 2


def test_without_the_packages_the_error_says_what_to_install(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with perdure.Client(sqlite_url) as client, pytest.raises(Error, match=r"install .*pandas"):
        client.blocking.frame("runs")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Error, match="pyarrow"):
        frames.ParquetFile(io.BytesIO(), columns(Table.RUNS, content=False))
