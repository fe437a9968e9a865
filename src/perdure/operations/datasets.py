"""Operations on datasets and experiments. Pure, no I/O.

A change of a dataset is a random number: its examples are stored under it first, in as many batches
as it takes, and are in no version until `insert_dataset_version` names the change. That statement
decides which of two changes is the next version. The settings of an experiment are stored once, by
`insert_experiment`; later calls compare theirs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from perdure.errors import UNREADABLE, Damaged, Error
from perdure.journal import NO_PROOF, Op, Row, Statement, read_op
from perdure.operations import stored_rows
from perdure.operations.runs import RunRow, names_in_pieces
from perdure.serde import places
from perdure.serde.places import Place
from perdure.serde.serializer import Serializer
from perdure.times import moment
from perdure.types import DatasetInfo, Example, ExperimentInfo

PAGE = 200
"""Maximum number of examples read or written at once."""


class VersionRow(NamedTuple):
    """A version of a dataset as it is stored."""

    dataset: str
    version: int
    change: int
    at: int
    body: bytes

    @property
    def place(self) -> Place:
        return places.of_dataset_version(self.dataset, self.version, self.change, self.at)

    def to_info(self, serializer: Serializer) -> DatasetInfo:
        """A version as its users see it. One that cannot be read has `damaged`."""
        info = DatasetInfo(self.dataset, self.version, 0, moment(self.at))
        try:
            return replace(info, size=serializer.loads(self.body, self.place, dict)["size"])
        except UNREADABLE as error:
            return replace(info, damaged=str(error))


class ExampleRow(NamedTuple):
    """What a change says about an example, as it is stored."""

    change: int
    n: int
    id: str
    version: int
    body: bytes

    def load(self, serializer: Serializer, dataset: str) -> Example | None:
        """The example; None: it was removed. One that cannot be read has `damaged`."""
        place = places.of_example(dataset, self.change, self.n, self.id)
        try:
            stored = serializer.loads(self.body, place, (dict, type(None)))
            if stored is None:
                return None
            return Example(id=self.id, **{**stored, "answers": tuple(stored["answers"])})
        except UNREADABLE as error:
            return Example(None, id=self.id, damaged=str(error))
        except (KeyError, TypeError):
            return Example(None, id=self.id, damaged=str(Damaged(place.name, "it has other parts")))


class ExperimentRow(NamedTuple):
    """An experiment as it is stored."""

    name: str
    dataset: str
    version: int
    created_at: int
    body: bytes

    @property
    def place(self) -> Place:
        return places.of_experiment(self.name, self.dataset, self.version, self.created_at)

    def load(self, serializer: Serializer) -> dict[str, Any]:
        """Its settings."""
        settings: dict[str, Any] = serializer.loads(self.body, self.place, dict)
        return settings

    def to_info(self, serializer: Serializer) -> ExperimentInfo:
        """An experiment as its users see it. One that cannot be read has `damaged`."""
        head = (self.name, self.dataset, self.version)
        at = moment(self.created_at)
        try:
            settings = self.load(serializer)
            names = tuple(settings["evaluators"])
            modes = {name: rule[0] for name, rule in settings["effects"].items()}
            rest = (settings["repetitions"], modes, settings["metadata"])
            return ExperimentInfo(*head, settings["target"], names, *rest, at)
        except UNREADABLE as error:
            return ExperimentInfo(*head, "", (), 1, {}, {}, at, damaged=str(error))


def content(serializer: Serializer, example: Example) -> dict[str, Any]:
    """What is stored of an example, besides its id."""
    stored = {
        "input": example.input,
        "expected": example.expected,
        "metadata": dict(example.metadata),
        "answers": list(example.answers),
        "signals": dict(example.signals),
        "run_id": example.run_id,
    }
    return dict(serializer.redacted_values(stored, ("run_id",)))


def digest(serializer: Serializer, example: Example) -> str:
    """A hash of an example's content. If the content is JSON, the order of keys does not matter."""
    stored = content(serializer, example)
    try:
        data = json.dumps(stored, sort_keys=True, allow_nan=False).encode()
    except (TypeError, ValueError):
        data = serializer.codec.encode_own(stored, f"example {example.id!r}")
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def insert_examples(
    serializer: Serializer,
    dataset: str,
    change: int,
    first: int,
    examples: Sequence[tuple[str, Example | None]],
) -> Op[None]:
    """Store what a change says about examples, by id; None removes one. `first` numbers them."""
    statements = []
    for n, (id, example) in enumerate(examples, first):
        stored = None if example is None else content(serializer, example)
        body = serializer.dumps(stored, places.of_example(dataset, change, n, id), own=True)
        params = {"dataset": dataset, "change": change, "n": n, "id": id, "body": body}
        statements.append(Statement("insert_example", params))
    return Op("insert_examples", statements, lambda rows: None, write=True)


def insert_version(
    serializer: Serializer, dataset: str, version: int, change: int, size: int, now: int
) -> Op[bool]:
    """Make a change this version. False: another change already is."""
    place = places.of_dataset_version(dataset, version, change, now)
    params = {
        "dataset": dataset,
        "version": version,
        "change": change,
        "now": now,
        "body": serializer.dumps({"size": size}, place),
    }
    ours = Statement("find_dataset_version", params)
    return Op(
        f"version {version} of dataset {dataset!r}",
        [Statement("insert_dataset_version", params), ours],
        lambda rows: bool(rows[-1]),
        write=True,
        key=ours,
    )


def version_of(dataset: str, version: int | None = None) -> Op[VersionRow | None]:
    """A version of a dataset, by default the newest."""
    params = {"dataset": dataset, "version": version}
    return read_op("dataset_version", params, partial(stored_rows.first, VersionRow))


def versions_of(dataset: str) -> Op[list[VersionRow]]:
    return read_op("dataset_versions", {"dataset": dataset}, partial(stored_rows.every, VersionRow))


def every_dataset() -> Op[list[VersionRow]]:
    """The newest version of each dataset."""
    return read_op("datasets", {}, partial(stored_rows.every, VersionRow))


def examples_page(dataset: str, version: int, after: tuple[int, int]) -> Op[list[ExampleRow]]:
    """The changes of a dataset up to a version, behind a position (version, number)."""
    params = {
        "dataset": dataset,
        "version": version,
        "after": after[0],
        "after_n": after[1],
        "count": PAGE,
    }
    return read_op("examples_of_dataset", params, partial(stored_rows.every, ExampleRow))


def _redacted(serializer: Serializer, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an experiment as they are stored. Its effects are found by their names."""
    names = {"target", "evaluators", "repetitions", "effects"}
    made = dict(serializer.redacted_values(settings, names))
    return {**made, "effects": dict(serializer.redacted_values(settings["effects"], ()))}


def put_experiment(
    serializer: Serializer,
    name: str,
    dataset: str,
    version: int,
    settings: Mapping[str, Any],
    now: int,
) -> Op[ExperimentRow]:
    """Store the settings of an experiment, unless it has some. Returns the stored ones."""
    place = places.of_experiment(name, dataset, version, now)
    params = {
        "name": name,
        "dataset": dataset,
        "version": version,
        "now": now,
        "body": serializer.dumps(
            _redacted(serializer, settings), place, "the settings of the experiment", own=True
        ),
    }
    found = Statement("experiment", params)
    return Op(
        f"experiment {name!r}",
        [Statement("insert_experiment", params), found],
        lambda rows: stored_rows.stored(ExperimentRow, rows[-1][0]),
        write=True,
        key=found,
        proof=NO_PROOF,
    )


def experiment(name: str) -> Op[ExperimentRow | None]:
    return read_op("experiment", {"name": name}, partial(stored_rows.first, ExperimentRow))


def experiments(dataset: str | None, count: int) -> Op[list[ExperimentRow]]:
    """Experiments, newest first: of one dataset, or all."""
    params = {"dataset": dataset, "count": count}
    return read_op("experiments", params, partial(stored_rows.every, ExperimentRow))


def keyed_runs(thread_ids: Iterable[str]) -> Op[list[RunRow]]:
    """The runs of these threads that were started with a key."""

    def result(rows: Sequence[Sequence[Row]]) -> list[RunRow]:
        return [stored_rows.stored(RunRow, row) for some in rows for row in some]

    pieces = names_in_pieces(thread_ids)
    statements = [Statement("keyed_runs_of_threads", piece) for piece in pieces]
    return Op("keyed_runs_of_threads", statements, result)


def difference(
    serializer: Serializer, before: Mapping[str, Example], after: Mapping[str, Example]
) -> list[tuple[str, Example | None]]:
    """The change that turns one set of examples, by id, into another."""
    changes: list[tuple[str, Example | None]] = [(id, None) for id in before if id not in after]
    for id, example in after.items():
        known = before.get(id)
        if known is None or known.damaged or not _are_same(serializer, known, example):
            changes.append((id, example))
    return changes


def _are_same(serializer: Serializer, one: Example, other: Example) -> bool:
    try:
        return digest(serializer, one) == digest(serializer, other)
    except Error:  # storing it raises
        return False
