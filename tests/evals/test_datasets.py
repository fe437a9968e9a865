"""A dataset has versions: each change of its examples makes one, and none ever changes."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from perdure.client import Client
from perdure.errors import BadArgument, NotFound
from perdure.evals import Dataset, Example
from perdure.operations import datasets
from tests.support.raw import execute


async def ids(dataset: Dataset, version: int | None = None) -> list[str]:
    return [one.id for one in await dataset.examples(version)]


async def test_each_change_makes_a_version_and_an_old_one_can_be_read(url: str) -> None:
    async with Client(url) as client:
        ada, grace = Example({"to": "ada"}, expected=1, id="a"), Example({"to": "grace"}, id="b")
        letters = await Dataset.create(client, "letters", [ada])
        assert (letters.version, await letters.examples()) == (1, [ada])
        assert await letters.add(grace, {"input": "no id"}) == 2
        assert await letters.add(Example({"to": "ada!"}, id="a")) == 3
        assert await letters.remove("b", "never there") == 4
        [first, second] = await letters.examples()
        assert (first.input, second.input) == ({"to": "ada!"}, "no id")
        assert len(second.id) == 16
        assert await ids(letters, 2) == ["a", "b", second.id]
        assert (await letters.examples(2))[:2] == [ada, grace]
        old = await Dataset.load(client, "letters", 1)
        assert await old.examples() == [ada]
        sizes = [(one.version, one.size) for one in await letters.versions()]
        assert sizes == [(1, 1), (2, 3), (3, 3), (4, 2)]
        await Dataset.create(client, "empty")
        every = [(one.name, one.version, one.size) for one in await Dataset.all(client)]
        assert every == [("empty", 1, 0), ("letters", 4, 2)]


async def test_a_change_without_a_difference_makes_no_version(sqlite_url: str) -> None:
    async with Client(sqlite_url) as client:
        given = [Example({"a": 1, "b": 2}), Example("x", id="x")]
        letters = await Dataset.create(client, "letters", given)
        again = await Dataset.create(client, "letters", [Example({"b": 2, "a": 1}), given[1]])
        assert (letters.version, again.version) == (1, 1)
        assert await again.add(given[1]) == 1
        assert await again.remove("not there") == 1


async def test_two_changes_at_once_both_happen(sqlite_url: str) -> None:
    async with Client(sqlite_url) as client, Client(sqlite_url) as other:
        await Dataset.create(client, "letters")
        handles = [await Dataset.load(one, "letters") for one in (client, other) * 4]
        await asyncio.gather(*(one.add(Example(n)) for n, one in enumerate(handles)))
        letters = await Dataset.load(client, "letters")
        assert letters.version == 9
        assert {one.input for one in await letters.examples()} == set(range(8))


async def test_a_change_cut_off_by_a_crash_is_in_no_version(sqlite_url: str) -> None:
    async with Client(sqlite_url) as client:
        letters = await Dataset.create(client, "letters", [Example(1, id="a")])
        lost = [("b", Example(2)), ("a", None)]
        serializer = client.engine.serializer
        await client.journal.ado(datasets.insert_examples(serializer, "letters", 7, 0, lost))
        assert await ids(letters) == ["a"]
        assert await letters.add(Example(3, id="c")) == 2
        assert await ids(letters) == ["a", "c"]


async def test_a_dataset_may_be_larger_than_a_batch(sqlite_url: str) -> None:
    async with Client(sqlite_url) as client:
        letters = await Dataset.create(client, "many", [Example(n) for n in range(450)])
        assert letters.version == 1
        assert [one.input for one in await letters.examples()] == [*range(450)]


async def test_examples_are_encrypted_and_bound_to_their_place(sqlite_url: str) -> None:
    keys = {"one": os.urandom(32)}
    async with Client(sqlite_url, encryption_keys=keys) as client:
        examples = [Example("a secret", id="a"), Example("another", id="b")]
        letters = await Dataset.create(client, "letters", examples)
        assert not execute(sqlite_url, "SELECT 1 FROM perdure_examples WHERE body LIKE '%secret%'")
        execute(sqlite_url, "UPDATE perdure_examples SET id = 'c' WHERE id = 'b'")
        [first, moved] = await letters.examples()
        assert (first.input, first.damaged, moved.input) == ("a secret", None, None)
        assert "example 'c'" in str(moved.damaged)
    async with Client(sqlite_url, encryption_keys={"two": os.urandom(32)}) as other:
        [info] = await Dataset.all(other)
        assert "encrypted with key 'one'" in str(info.damaged)


async def test_an_invalid_example_is_refused(sqlite_url: str) -> None:
    async with Client(sqlite_url) as client:
        wrong: list[Any] = [
            "text",
            {"inputs": 1},
            Example(1, answers="yes"),
            Example(1, id="a" * 300),
        ]
        for one in wrong:
            with pytest.raises(Exception, match=r"example|answers|id"):
                await Dataset.create(client, "letters", [one])
        with pytest.raises(BadArgument, match="Two examples have the id 'a'"):
            await Dataset.create(client, "letters", [Example(1, id="a"), Example(2, id="a")])
        with pytest.raises(NotFound, match="letters"):
            await Dataset.load(client, "letters")
        assert await Dataset.all(client) == []


async def test_equal_sets_make_equal_examples_in_every_process(sqlite_url: str) -> None:
    one, other = set([0, 8]), set([8, 0])  # noqa: C405 (the order in which they are filled)
    assert list(one) != list(other)  # as those of texts are in two processes
    async with Client(sqlite_url) as client:
        made = await Dataset.create(client, "sets", [Example({"tags": one}, id="e")])
        assert (
            made.version
            == (await Dataset.create(client, "sets", [Example({"tags": other}, id="e")])).version
        )
