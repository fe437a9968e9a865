"""What commands look up: ids by their beginning, lists page by page, a run with everything that
belongs to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from perdure.client import Client
from perdure.commands.prefixes import resolve
from perdure.commands.run_report import RunReport, RunReporter
from perdure.commands.run_service import UnknownGraphName
from perdure.errors import BadArgument, NotFound
from perdure.types import Run

T = TypeVar("T")
PAGE = 200


def find_run(client: Client, prefix: str | None, thread_id: str | None) -> Run:
    """A run by its id or the beginning of it, or the newest run of a thread; without its output."""
    if (prefix is None) == (thread_id is None):
        raise BadArgument("Which run? Give its id, or --thread for the newest run of a thread.")
    if prefix is not None:
        return client.blocking.find(prefix)
    newest = client.blocking.runs(thread_id=thread_id, limit=1, output=False)
    if not newest:
        raise NotFound("run of the thread", str(thread_id))
    return newest[0]


def find_id(client: Client, what: str, prefix: str) -> str:
    """The id of a run or wait, or the key of an effect, by the beginning of it."""
    return client.journal.run(resolve(what, prefix))


def unknown_graphs(client: Client, runs: Iterable[Run]) -> list[UnknownGraphName]:
    """The graphs that no worker has, if one of these runs may be waiting because of that."""
    return client.blocking.run(run_reporter(client).unknown_graphs(*runs))


def run_reporter(client: Client) -> RunReporter:
    return RunReporter(client.journal, client.services)


def report_run(client: Client, run: Run, reporter: RunReporter | None = None) -> RunReport:
    """Everything that belongs to a run. `reporter` spares the look at what is due, for many
    runs."""
    return client.blocking.run((reporter or run_reporter(client)).report(run))


def all_pages(page: Callable[[T | None], list[T]]) -> Iterator[T]:
    """Every item, page by page; `page` reads those after an item."""
    last: T | None = None
    while found := page(last):
        yield from found
        last = found[-1]
