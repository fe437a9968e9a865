"""`Dataset`: named examples, versioned in the journal.

Each change of the examples makes a version, and no version ever changes: an old one can be read and
evaluated. A change without a difference makes no version. Two changes at once both happen, one
after the other. A crash in the middle of a change leaves the dataset as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from perdure.client import Client
from perdure.errors import BadArgument, forgot_await
from perdure.service.datasets import Examples
from perdure.service.validation import check_name
from perdure.types import DatasetInfo, Example

_FIELDS = {field.name for field in fields(Example)} - {"damaged"}


class Dataset:
    """Named examples in the journal. Each change makes a version, and versions never change.

    A change without a difference makes no version. Two changes at once both happen, one after the
    other. A crash in the middle of a change leaves the dataset as it was. The methods are
    coroutines; without an event loop, `client.blocking.run(…)` takes any of them.

        examples = [Example("ada", expected="Dear Ada")]
        letters = await Dataset.create(client, "letters", examples)
        await letters.add(Example("grace", expected="Dear Grace"))

    Use `create` or `load` to get one.

    Args:
        client: A `Client` or `Runtime` on the journal.
        name: The name of the dataset.
        version: The version that this object reads and evaluates.
    """

    def __init__(self, client: Client, name: str, version: int) -> None:
        self.client, self.name, self.version = client, name, version

    def __repr__(self) -> str:
        return f"<perdure.evals.Dataset {self.name!r} version {self.version}>"

    @classmethod
    async def create(
        cls, client: Client, name: str, examples: Iterable[Example | Mapping[str, Any]] = ()
    ) -> Dataset:
        """Create a dataset, or add the examples to the one of this name.

        A repeated call changes nothing.

        Args:
            client: A `Client` or `Runtime` on the journal.
            name: The name of the dataset.
            examples: `Example`s, or dicts with their fields.

        Returns:
            The dataset, in its newest version.

        Raises:
            BadArgument: An example is not valid, or two have the same id.
        """
        dataset = cls(client, check_name("name", name), 0)
        await dataset._add(examples, create=True)
        return dataset

    @classmethod
    async def load(cls, client: Client, name: str, version: int | None = None) -> Dataset:
        """Read a dataset, in its newest version or in another one.

        Args:
            client: A `Client` or `Runtime` on the journal.
            name: The name of the dataset.
            version: The version. By default the newest.

        Raises:
            NotFound: The journal has no such dataset or version.
        """
        plan = client.services.datasets.version(check_name("name", name), version)
        return cls(client, name, (await client.journal.arun(plan)).version)

    @staticmethod
    async def all(client: Client) -> list[DatasetInfo]:
        """List all datasets, each in its newest version, by name.

        Args:
            client: A `Client` or `Runtime` on the journal.
        """
        return await client.journal.arun(client.services.datasets.every())

    async def add(self, *examples: Example | Mapping[str, Any]) -> int:
        """Add examples to the newest version. An example replaces the one with the same id.

        Args:
            *examples: `Example`s, or dicts with their fields. The id of an example without one is a
                hash of its content.

        Returns:
            The number of the version that has them.

        Raises:
            BadArgument: An example is not valid, or two have the same id.
        """
        return await self._add(examples, create=False)

    async def _add(self, examples: Iterable[Example | Mapping[str, Any]], *, create: bool) -> int:
        given = self._identified(examples)
        plan = self.client.services.datasets.change(
            self.name, lambda before: {**before, **given}, create=create
        )
        self.version = (await self.client.journal.arun(plan)).version
        return self.version

    def _identified(self, examples: Iterable[Example | Mapping[str, Any]]) -> Examples:
        """Examples by id."""
        given: Examples = {}
        for one in examples:
            example = to_example(one)
            id = self.client.services.datasets.identified(example)
            if id in given and example.id:
                raise BadArgument(f"Two examples have the id {id!r}: leave one out.")
            given[id] = replace(example, id=id)
        return given

    async def replace(self, examples: Iterable[Example | Mapping[str, Any]]) -> int:
        """Make these the only examples.

        Args:
            examples: `Example`s, or dicts with their fields.

        Returns:
            The number of the version that has them.
        """
        given = self._identified(examples)
        plan = self.client.services.datasets.change(self.name, lambda before: given)
        self.version = (await self.client.journal.arun(plan)).version
        return self.version

    async def remove(self, *ids: str) -> int:
        """Remove examples from the newest version. Unknown ids are ignored.

        Args:
            *ids: The ids of the examples.

        Returns:
            The number of the version without them.
        """
        gone = set(ids)

        def kept(before: Examples) -> Examples:
            return {id: example for id, example in before.items() if id not in gone}

        plan = self.client.services.datasets.change(self.name, kept)
        self.version = (await self.client.journal.arun(plan)).version
        return self.version

    async def examples(self, version: int | None = None) -> list[Example]:
        """Read the examples, in the order in which they were first added.

        Args:
            version: The version. By default that of this object.

        Raises:
            NotFound: The dataset has no such version.
        """
        service = self.client.services.datasets
        if version is not None:
            await self.client.journal.arun(service.version(self.name, version))
        found = await self.client.journal.arun(
            service.examples(self.name, self.version if version is None else version)
        )
        return [*found.values()]

    async def versions(self) -> list[DatasetInfo]:
        """List all versions, oldest first."""
        return await self.client.journal.arun(self.client.services.datasets.versions(self.name))


def to_example(given: Any) -> Example:
    """An example, from itself or from a dict with its fields."""
    if isinstance(given, Example):
        if given.damaged:
            raise BadArgument(f"Example {given.id!r} cannot be stored: {given.damaged}")
        return _checked(given)
    if not isinstance(given, Mapping) or "input" not in given or given.keys() - _FIELDS:
        raise BadArgument(
            "An example must be an Example, or a dict with 'input' and perhaps "
            f"{', '.join(repr(name) for name in sorted(_FIELDS - {'input'}))}, not {given!r}."
            f"{forgot_await(given)}"
        )
    return _checked(Example(**given))


def _checked(example: Example) -> Example:
    if example.id:
        check_name("id", example.id)
    for name in ("metadata", "signals"):
        if not isinstance(getattr(example, name), Mapping):
            raise BadArgument(f"{name} of an example must be a dict.")
    if isinstance(example.answers, (str, bytes, Mapping)):
        raise BadArgument("answers of an example must be a list: one for each question.")
    return example
