"""Plans about datasets and experiments: change, read, list them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perdure.errors import BadArgument, NotFound
from perdure.journal import Plan
from perdure.journal.clock import Clock
from perdure.journal.ids import random_number
from perdure.operations import datasets
from perdure.operations.datasets import ExampleRow, ExperimentRow, VersionRow
from perdure.operations.runs import RunRow
from perdure.serde.serializer import Serializer
from perdure.types import DatasetInfo, Example, ExperimentInfo

Examples = dict[str, Example]
"""The examples of a version by id, in the order in which they were first added."""


class DatasetService:
    """Plans about the datasets and experiments of a journal."""

    def __init__(self, serializer: Serializer, clock: Clock) -> None:
        self._serializer, self._clock = serializer, clock

    # -- datasets

    def change(
        self, name: str, make: Callable[[Examples], Examples], *, create: bool = False
    ) -> Plan[DatasetInfo]:
        """Change the examples of a dataset; the newest version is read again if another change was
        faster. Gives the version that has them, which is the newest one if nothing changed.

        A crash before the version is stored leaves the dataset as it was.
        """
        while True:
            row: VersionRow | None = yield datasets.version_of(name)
            if row is None and not create:
                raise NotFound("dataset", name)
            version = 0 if row is None else row.version
            before = (yield from self.examples(name, version)) if version else {}
            after = make(dict(before))
            changes = datasets.difference(self._serializer, before, after)
            if row is not None and not changes:
                return row.to_info(self._serializer)
            change = random_number()
            for first in range(0, len(changes), datasets.PAGE):
                some = changes[first : first + datasets.PAGE]
                yield datasets.insert_examples(self._serializer, name, change, first, some)
            now = self._clock.now()
            if (
                yield datasets.insert_version(
                    self._serializer, name, version + 1, change, len(after), now
                )
            ):
                return (yield from self.version(name, version + 1))

    def version(self, name: str, version: int | None = None) -> Plan[DatasetInfo]:
        """A version of a dataset, by default the newest. Raises `NotFound`."""
        row: VersionRow | None = yield datasets.version_of(name, version)
        if row is None:
            raise NotFound("dataset", name if version is None else f"{name} version {version}")
        return row.to_info(self._serializer)

    def versions(self, name: str) -> Plan[list[DatasetInfo]]:
        """Every version of a dataset, oldest first."""
        rows: list[VersionRow] = yield datasets.versions_of(name)
        if not rows:
            raise NotFound("dataset", name)
        return [row.to_info(self._serializer) for row in rows]

    def every(self) -> Plan[list[DatasetInfo]]:
        """The newest version of each dataset, by name."""
        rows: list[VersionRow] = yield datasets.every_dataset()
        return [row.to_info(self._serializer) for row in rows]

    def examples(self, name: str, version: int) -> Plan[Examples]:
        """The examples of a version by id."""
        found: Examples = {}
        after = (0, -1)
        while True:
            rows: list[ExampleRow] = yield datasets.examples_page(name, version, after)
            for row in rows:
                example = row.load(self._serializer, name)
                if example is None:
                    found.pop(row.id, None)
                else:
                    found[row.id] = example
            if len(rows) < datasets.PAGE:
                return found
            after = (rows[-1].version, rows[-1].n)

    def identified(self, example: Example) -> str:
        """The id of an example: its own, or one made of its content."""
        return example.id or datasets.digest(self._serializer, example)

    def differ(self, one: Examples, other: Examples) -> bool:
        """Whether two sets of examples, by id, are not the same."""
        return bool(datasets.difference(self._serializer, one, other))

    # -- experiments

    def begin(
        self, name: str, dataset: str, version: int, settings: Mapping[str, Any]
    ) -> Plan[ExperimentRow]:
        """Store the settings of an experiment, or find those it has."""
        row: ExperimentRow = yield datasets.put_experiment(
            self._serializer, name, dataset, version, settings, self._clock.now()
        )
        return row

    def settings(self, name: str) -> Plan[tuple[ExperimentInfo, dict[str, Any]]]:
        """An experiment and its settings. Raises `NotFound`."""
        row: ExperimentRow | None = yield datasets.experiment(name)
        if row is None:
            raise NotFound("experiment", name)
        return row.to_info(self._serializer), row.load(self._serializer)

    def experiments(self, dataset: str | None, count: int) -> Plan[list[ExperimentInfo]]:
        """Experiments, newest first: of one dataset, or all."""
        rows: list[ExperimentRow] = yield datasets.experiments(dataset, count)
        return [row.to_info(self._serializer) for row in rows]

    def runs(self, keys: Mapping[str, str]) -> Plan[dict[str, RunRow]]:
        """The runs with these keys, given by thread; by their keys."""
        rows: list[RunRow] = yield datasets.keyed_runs(keys)
        return {row.key: row for row in rows if row.key and keys[row.thread_id] == row.key}


def check_examples(examples: Mapping[str, Example]) -> None:
    """Raise `BadArgument` for an example that cannot be read."""
    for id, example in examples.items():
        if example.damaged:
            raise BadArgument(f"Example {id!r} cannot be evaluated: {example.damaged}")
