"""Examples survive a file: everything in JSON Lines and LangSmith's form, texts in CSV."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar
from urllib.parse import parse_qs

import pytest
from langsmith import Client

from perdure.errors import BadArgument, NotFound
from perdure.evals import Example, formats, langsmith_datasets
from tests.support.loopback import serving

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
def test_an_error_in_a_file_names_its_line(form: formats.Format, text: str, said: str) -> None:
    with pytest.raises(BadArgument, match=said):
        formats.read(io.StringIO(text), form)


def test_what_a_format_cannot_hold_is_refused() -> None:
    with pytest.raises(BadArgument, match=r"Example 'seven' has answers .* JSON Lines"):
        written(EXAMPLES, "csv")
    with pytest.raises(BadArgument, match="Example 'x' is not JSON"):
        written([Example(object(), id="x")], "jsonl")
    with pytest.raises(BadArgument, match="There is no column 'name'; there are input"):
        formats.read(io.StringIO("input\n1\n"), "csv", input=["name"])


class LangSmith(BaseHTTPRequestHandler):
    """A LangSmith on loopback that keeps datasets and examples, for its real client."""

    datasets: ClassVar[dict[str, str]] = {}
    examples: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {}
    methods: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        asked = parse_qs(query)
        if path == "/info":
            self._reply({"instance_flags": {"dataset_examples_multipart_enabled": True}})
        elif path == "/datasets":
            known = self.datasets.get(asked["name"][0])
            self._reply([self._dataset(known, asked["name"][0])] if known else [])
        elif path == "/examples":
            kept = self.examples[asked["dataset"][0]] if asked["offset"] == ["0"] else {}
            self._reply([{"id": id, **one} for id, one in kept.items()])
        else:
            self._reply([])

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/datasets":
            name, id = json.loads(body)["name"], str(uuid.uuid4())
            self.datasets[name], self.examples[id] = id, {}
            self._reply(self._dataset(id, name))
            return
        self.methods.append(self.command)
        kept = self.examples[self.path.split("/")[-2]]
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        for part in BytesParser(policy=HTTP).parsebytes(head + body).iter_parts():
            name, value = (
                str(part.get_param("name", header="content-disposition")),
                part.get_content(),
            )
            value = json.loads(value)
            id, _, field = name.partition(".")
            if field:
                kept[id][field] = value
                continue
            assert (id in kept) == (self.command == "PATCH")
            split = {"dataset_split": [value["split"]]} if value.get("split") else {}
            kept[id] = {"metadata": {**value["metadata"], **split}}
        self._reply({"count": 1, "example_ids": []})

    def do_PATCH(self) -> None:
        self.do_POST()

    def _dataset(self, id: str, name: str) -> dict[str, str]:
        return {"id": id, "name": name, "created_at": "2026-01-01T00:00:00Z"}

    def _reply(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def langsmith() -> Iterator[Client]:
    with serving(LangSmith) as url:
        yield Client(api_url=url, api_key="none", auto_batch_tracing=False)


def test_a_dataset_goes_to_langsmith_and_comes_back_and_a_second_time_adds_nothing(
    langsmith: Client,
) -> None:
    with pytest.raises(NotFound, match="no dataset 'letters' in LangSmith"):
        langsmith_datasets.pull("letters", langsmith)
    for _ in range(2):
        assert langsmith_datasets.push(EXAMPLES, "letters", langsmith) == len(EXAMPLES)
    assert langsmith_datasets.pull("letters", langsmith) == EXAMPLES
    assert LangSmith.methods == ["POST", "PATCH"]
    langsmith_datasets.push(EXAMPLES, "others", langsmith)
    ids = [id for examples in LangSmith.examples.values() for id in examples]
    assert len(set(ids)) == 2 * len(EXAMPLES)  # an id is of one dataset only


def test_langsmith_is_not_called_unless_it_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LANGSMITH_API_KEY", raising=False)
    with pytest.raises(BadArgument, match="set LANGSMITH_API_KEY"):
        langsmith_datasets.pull("letters")
