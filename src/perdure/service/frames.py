"""Flat tables as pandas DataFrames and as Parquet. The extra `frames` is imported when used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from perdure.errors import Error, needs_extra
from perdure.service.views.tables import Column, ColumnType, Row

DTYPES = {
    ColumnType.TEXT: "string",
    ColumnType.JSON: "string",
    ColumnType.INTEGER: "Int64",
    ColumnType.NUMBER: "Float64",
    ColumnType.BOOLEAN: "boolean",
    ColumnType.TIME: "datetime64[ms, UTC]",
}
"""The pandas dtype of each type of column. All of them can be empty."""

ROW_GROUP = 5000
"""Rows of a group in a Parquet file, at least."""


def load(what: str, *packages: str) -> list[Any]:
    """Import these packages. Raises `Error` with what to install."""
    try:
        return [import_module(package) for package in packages]
    except ImportError as error:
        raise Error(needs_extra(what, "frames")) from error


class FrameBuilder:
    """Collects rows, then makes a DataFrame of them."""

    def __init__(self, columns: Sequence[Column]) -> None:
        [self._pandas] = load("frame()", "pandas")
        self._columns = columns
        self._values: dict[str, list[Any]] = {column.name: [] for column in columns}

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            for name, values in self._values.items():
                values.append(row[name])

    def frame(self) -> Any:
        """A DataFrame; its columns have their dtypes if it is empty too."""
        series = self._pandas.Series
        return self._pandas.DataFrame(
            {
                column.name: series(self._values[column.name], dtype=DTYPES[column.type])
                for column in self._columns
            }
        )


class ParquetFile:
    """Writes rows to a Parquet file, in groups."""

    def __init__(self, file: Any, columns: Sequence[Column]) -> None:
        self._pyarrow, parquet = load("Parquet", "pyarrow", "pyarrow.parquet")
        arrow = self._pyarrow
        types = {
            ColumnType.TEXT: arrow.string(),
            ColumnType.JSON: arrow.string(),
            ColumnType.INTEGER: arrow.int64(),
            ColumnType.NUMBER: arrow.float64(),
            ColumnType.BOOLEAN: arrow.bool_(),
            ColumnType.TIME: arrow.timestamp("ms", tz="UTC"),
        }
        self._schema = arrow.schema([(column.name, types[column.type]) for column in columns])
        self._writer = parquet.ParquetWriter(file, self._schema)
        self._rows: list[Row] = []

    def write(self, rows: list[Row]) -> None:
        self._rows += rows
        if len(self._rows) >= ROW_GROUP:
            self._write_group()

    def close(self) -> None:
        """Write what is left, and the end of the file."""
        self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._writer.write_table(self._pyarrow.Table.from_pylist(rows, schema=self._schema))
