"""Examples in files: JSON Lines, LangSmith's form of it, and CSV.

JSON Lines keeps everything. A line is an example with the fields of `Example`; one that has
`inputs` is LangSmith's. LangSmith takes objects only, and assigns its own ids. What that would lose
is kept in the metadata, under `perdure`, and restored from there. CSV holds texts: any other value
is written as JSON. Objects and lists are read back from it.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TextIO

from perdure.errors import BadArgument
from perdure.types import Example

Format = Literal["jsonl", "langsmith", "csv"]
INPUTS, OUTPUTS = ("input", "inputs"), ("expected", "output", "outputs", "reference_outputs")
"""Columns of a CSV file, if the caller names none."""
OWN = "perdure"
"""The key of LangSmith metadata that holds what LangSmith has no field for."""
_FIELDS = ("id", "input", "expected", "metadata", "answers", "signals", "run_id")


def format_of(name: str) -> Format:
    """The format of a file, by its name."""
    return "csv" if name.lower().endswith(".csv") else "jsonl"


def read(
    file: Iterable[str],
    form: Format = "jsonl",
    *,
    input: Sequence[str] = (),
    expected: Sequence[str] = (),
) -> list[Example]:
    """Read examples from a file of JSON Lines, LangSmith's form of it, or CSV.

    Args:
        file: The lines of the file.
        form: `jsonl`, `langsmith` or `csv`.
        input: For CSV, the columns of the input: the value of one, or an object of several.
        expected: For CSV, the columns of the expected output.

    Raises:
        BadArgument: A line is not valid; the message has its number.
    """
    if form == "csv":
        return list(_read_csv(file, input, expected))
    if input or expected:
        raise BadArgument("Columns can be named for CSV only: JSON Lines has fields of its own.")
    return [_read_line(n, line) for n, line in enumerate(file, 1) if line.strip()]


def write(examples: Iterable[Example], file: TextIO, form: Format = "jsonl") -> int:
    """Write examples to a file, and return their number.

    Args:
        examples: The examples.
        file: Where to write.
        form: `jsonl` keeps everything. `langsmith` keeps what LangSmith has no field for in the
            metadata, under `perdure`. `csv` holds text only.

    Raises:
        BadArgument: An example is not JSON data.
    """
    if form == "csv":
        return _write_csv(list(examples), file)
    written = 0
    for example in examples:
        line = to_langsmith(example) if form == "langsmith" else _own_line(example)
        try:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        except (TypeError, ValueError) as error:
            raise BadArgument(f"Example {example.id!r} is not JSON: {error}.") from error
        written += 1
    return written


# -- JSON Lines


def _own_line(example: Example) -> dict[str, Any]:
    line = {"input": example.input}
    if example.expected is not None:
        line["expected"] = example.expected
    rest = {name: _plain(getattr(example, name)) for name in _FIELDS if name not in line}
    return {"id": rest.pop("id"), **line, **{name: one for name, one in rest.items() if one}}


def _plain(value: Any) -> Any:
    """Mappings and sequences of an example as JSON has them."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _read_line(n: int, line: str) -> Example:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadArgument(f"Line {n} is not JSON: {error}.") from error
    if isinstance(given, dict) and "inputs" in given:
        return from_langsmith(given)
    if not isinstance(given, dict) or "input" not in given:
        raise BadArgument(f"Line {n} is not an example: it needs `input`, or LangSmith's `inputs`.")
    unknown = given.keys() - set(_FIELDS)
    if unknown:
        names = ", ".join(sorted(unknown))
        raise BadArgument(f"Line {n} has fields that an example does not have: {names}.")
    rest = {name: value for name, value in given.items() if value is not None}
    return Example(**{"input": None, **rest, "answers": tuple(given.get("answers") or ())})


# -- LangSmith


def to_langsmith(example: Example) -> dict[str, Any]:
    """An example as a line of a LangSmith dataset."""
    metadata = dict(example.metadata)
    split = metadata.pop("split", None)
    own: dict[str, Any] = {"id": example.id}
    for name in ("answers", "signals", "run_id"):
        if value := getattr(example, name):
            own[name] = _plain(value)
    line: dict[str, Any] = {}
    for name, theirs in (("input", "input"), ("expected", "output")):
        value = getattr(example, name)
        if isinstance(value, Mapping):
            line[f"{theirs}s"] = dict(value)
        elif value is not None or name == "input":
            line[f"{theirs}s"] = {theirs: value}
            own.setdefault("wrapped", []).append(theirs)
    line["metadata"] = {**metadata, OWN: own}
    return {**line, "split": split} if split else line


def from_langsmith(line: Mapping[str, Any]) -> Example:
    """An example from a line of a LangSmith dataset, or from an `Example` of its client."""
    metadata = dict(line.get("metadata") or {})
    own = metadata.pop(OWN, None) or {}
    split = line.get("split") or metadata.pop("dataset_split", None)
    if isinstance(split, list) and len(split) == 1:
        [split] = split
    values: dict[str, Any] = {"input": line.get("inputs"), "output": line.get("outputs")}
    for name in own.get("wrapped", ()):
        if isinstance(values.get(name), Mapping):
            values[name] = values[name].get(name)
    return Example(
        values["input"],
        values["output"],
        id=str(own.get("id") or line.get("id") or ""),
        metadata={**metadata, "split": split} if split else metadata,
        answers=tuple(own.get("answers", ())),
        signals=own.get("signals", {}),
        run_id=own.get("run_id"),
    )


# -- CSV


def _read_csv(
    file: Iterable[str], inputs: Sequence[str], outputs: Sequence[str]
) -> Iterator[Example]:
    reader = csv.DictReader(file, strict=True)
    try:
        columns = list(reader.fieldnames or ())
        ins = _columns(columns, inputs, INPUTS)
        outs = _columns(columns, outputs, OUTPUTS)
        if not ins:
            raise BadArgument(
                f"Which column is the input? There are {', '.join(columns) or 'none'}: name one, "
                "or call it `input`."
            )
        for row in reader:
            if None in row or None in row.values():
                raise BadArgument(f"Line {reader.line_num} does not have {len(columns)} columns.")
            rest = [name for name in columns if name not in (*ins, *outs, "id")]
            yield Example(
                _value(row, ins),
                _value(row, outs) if outs else None,
                id=row.get("id") or "",
                metadata={name: _cell(row[name]) for name in rest if row[name]},
            )
    except csv.Error as error:
        raise BadArgument(f"Line {reader.reader.line_num} is not CSV: {error}.") from error


def _columns(there: Sequence[str], named: Sequence[str], usual: Sequence[str]) -> list[str]:
    """The columns that were named, or the first of the usual ones."""
    missing = [name for name in named if name not in there]
    if missing:
        raise BadArgument(f"There is no column {missing[0]!r}; there are {', '.join(there)}.")
    return list(named) or [name for name in usual if name in there][:1]


def _value(row: Mapping[str, str], columns: Sequence[str]) -> Any:
    if len(columns) == 1:
        return _cell(row[columns[0]])
    return {name: _cell(row[name]) for name in columns}


def _cell(text: str) -> Any:
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _write_csv(examples: Sequence[Example], file: TextIO) -> int:
    extra = list(dict.fromkeys(key for one in examples for key in one.metadata))
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["id", "input", "expected", *extra])
    for one in examples:
        if one.answers or one.signals:
            raise BadArgument(
                f"Example {one.id!r} has answers or signals, which CSV has no place for: write "
                "JSON Lines."
            )
        cells = [one.input, one.expected, *(one.metadata.get(key) for key in extra)]
        writer.writerow([one.id, *(_text(cell) for cell in cells)])
    return len(examples)


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise BadArgument(f"{value!r} is not JSON: {error}.") from error
