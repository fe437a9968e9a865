"""Examples survive a file: everything in JSON Lines and LangSmith's form, texts in CSV."""

from __future__ import annotations

import inspect
import io
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from langsmith import Client, schemas

from perdure.errors import BadArgument, NotFound
from perdure.evals import Example, formats, langsmith_datasets

EXAMPLES = [
    Example({"name": "Ada"}, {"letter": "Dear Ada"}, "ada", {"split": "test", "n": 3}),
    Example("a text", 7, "seven", {}, ({"approved": True},), {"paid": 5}, "run-1"),
    Example([1, {"ü": None}], None, "list"),
    Example(None, False, "nothing"),
]


def written(examples: list[Example], form: formats.Format) -> str:
    file = io.StringIO()
    assert formats.write(examples, file, form) == len(examples)
    return file.getvalue()


@pytest.mark.parametrize("form", ["jsonl", "langsmith"])
def test_json_lines_give_back_what_was_written(form: formats.Format) -> None:
    text = written(EXAMPLES, form)
    assert len(text.splitlines()) == len(EXAMPLES)
    assert formats.read(io.StringIO(text + "\n"), form) == EXAMPLES


def test_a_line_of_langsmiths_own_export_is_an_example() -> None:
    line = (
        '{"id": "7", "inputs": {"q": "?"}, "outputs": {"a": "!"}, "metadata": {"k": 1}, '
        '"split": "train", "created_at": "2026-01-01"}'
    )
    [one] = formats.read([line])
    assert one == Example({"q": "?"}, {"a": "!"}, "7", {"k": 1, "split": "train"})


def test_csv_gives_back_texts_objects_and_other_columns() -> None:
    examples = [
        Example("Ada, of London", "Dear Ada\nyour order", "1", {"source": "mail"}),
        Example({"name": "Bo"}, ["a", "b"], "2", {"source": "chat"}),
    ]
    assert formats.read(io.StringIO(written(examples, "csv")), "csv") == examples


def test_columns_of_csv_are_named_or_recognised() -> None:
    text = "question,answer,topic\nWhy?,Because,life\n"
    [one] = formats.read(io.StringIO(text), "csv", input=["question"], expected=["answer"])
    assert one == Example("Why?", "Because", "", {"topic": "life"})
    [several] = formats.read(io.StringIO(text), "csv", input=["question", "topic"])
    assert several == Example(
        {"question": "Why?", "topic": "life"}, None, "", {"answer": "Because"}
    )
    [usual] = formats.read(io.StringIO("inputs,outputs\nWhy?,Because\n"), "csv")
    assert usual == Example("Why?", "Because")


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        ("jsonl", '{"input": 1}\n{', "Line 2 is not JSON"),
        ("jsonl", '{"output": 1}', "Line 1 is not an example: it needs `input`"),
        ("jsonl", '{"input": 1, "wrong": 2}', "Line 1 has fields .* wrong"),
        ("csv", "question\nWhy?", "Which column is the input. There are question"),
        ("csv", "input,expected\nWhy?", "Line 2 does not have 2 columns"),
        ("csv", 'input\n"Why?', "Line 2 is not CSV"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(
    form: formats.Format, text: str, said: str
) -> None:
    with pytest.raises(BadArgument, match=said):
        formats.read(io.StringIO(text), form)


def test_what_a_format_cannot_hold_is_refused() -> None:
    with pytest.raises(BadArgument, match=r"Example 'seven' has answers .* JSON Lines"):
        written(EXAMPLES, "csv")
    with pytest.raises(BadArgument, match="Example 'x' is not JSON"):
        written([Example(object(), id="x")], "jsonl")
    with pytest.raises(BadArgument, match="There is no column 'name'; there are input"):
        formats.read(io.StringIO("input\n1\n"), "csv", input=["name"])


class FakeLangSmith:
    """A LangSmith of one workspace. Each call must fit the signature of the real client."""

    def __init__(self) -> None:
        self.datasets: dict[str, uuid.UUID] = {}
        self.examples: dict[uuid.UUID, dict[uuid.UUID, schemas.Example]] = {}
        self.requests: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith(("_", "datasets", "examples", "requests")):
            return object.__getattribute__(self, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            inspect.signature(getattr(Client, name)).bind(self, *args, **kwargs)
            self.requests.append(name)
            return object.__getattribute__(self, name)(*args, **kwargs)

        return call

    def has_dataset(self, *, dataset_name: str) -> bool:
        return dataset_name in self.datasets

    def create_dataset(self, dataset_name: str, *, description: str) -> schemas.Dataset:
        self.datasets[dataset_name] = uuid.uuid4()
        self.examples[self.datasets[dataset_name]] = {}
        return self.read_dataset(dataset_name=dataset_name)

    def read_dataset(self, *, dataset_name: str) -> schemas.Dataset:
        at = datetime(2026, 1, 1, tzinfo=UTC)
        return schemas.Dataset(id=self.datasets[dataset_name], name=dataset_name, created_at=at)

    def list_examples(self, **which: Any) -> Iterator[schemas.Example]:
        id = which.get("dataset_id") or self.datasets[which["dataset_name"]]
        yield from self.examples[id].values()

    def create_examples(self, *, dataset_id: uuid.UUID, examples: list[dict[str, Any]]) -> None:
        for one in map(schemas.ExampleCreate.model_validate, examples):
            assert one.id is not None
            assert one.id not in self.examples[dataset_id]
            self._put(dataset_id, one, one.reference_outputs)

    def update_examples(self, *, dataset_id: uuid.UUID, updates: list[dict[str, Any]]) -> None:
        for one in map(schemas.ExampleUpdate.model_validate, updates):
            assert one.id in self.examples[dataset_id]
            self._put(dataset_id, one, one.outputs)

    def _put(self, dataset_id: uuid.UUID, one: Any, outputs: Any) -> None:
        metadata = (
            {**(one.metadata or {}), "dataset_split": [one.split]} if one.split else one.metadata
        )
        self.examples[dataset_id][one.id] = schemas.Example(
            id=one.id, inputs=one.inputs, outputs=outputs, metadata=metadata
        )


def test_a_dataset_goes_to_langsmith_and_comes_back_and_a_second_time_changes_nothing() -> None:
    langsmith = FakeLangSmith()
    with pytest.raises(NotFound, match="LangSmith dataset 'letters'"):
        langsmith_datasets.pull("letters", langsmith)
    for _ in range(2):
        assert langsmith_datasets.push(EXAMPLES, "letters", langsmith) == len(EXAMPLES)
    found = langsmith_datasets.pull("letters", langsmith)
    assert found == [
        Example(EXAMPLES[0].input, EXAMPLES[0].expected, "ada", {"n": 3, "split": ["test"]}),
        *EXAMPLES[1:],
    ]
    assert langsmith.requests.count("create_examples") == 1
    langsmith_datasets.push(EXAMPLES, "others", langsmith)
    ids = [id for examples in langsmith.examples.values() for id in examples]
    assert len(set(ids)) == 2 * len(EXAMPLES)  # an id is of one dataset only


def test_langsmith_is_not_called_unless_it_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LANGSMITH_API_KEY", raising=False)
    with pytest.raises(BadArgument, match="set LANGSMITH_API_KEY"):
        langsmith_datasets.pull("letters")
