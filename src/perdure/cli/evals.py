"""`perdure evals`: datasets in and out, evaluations, experiments beside each other."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, TypeVar

from typer import Argument, Exit, Option

from perdure.cli.options import (
    IDS_HELP,
    At,
    DryRun,
    Graph,
    Json,
    Limit,
    Metadata,
    Since,
    States,
    Thread,
    Until,
)
from perdure.cli.output import format_table, one_line, paint, print_json
from perdure.cli.output_file import output_file
from perdure.cli.runs import parse_filters
from perdure.cli.target import client_at, import_object, runtime_at
from perdure.errors import BadArgument
from perdure.service.views.formatting import count, utc_time
from perdure.service.views.terminal_text import printable

if TYPE_CHECKING:
    from perdure.client import Client
    from perdure.evals import Experiment
    from perdure.runtime import Runtime
    from perdure.service.views.experiment_tables import Table
    from perdure.service.views.experiments import ExperimentsView
    from perdure.types import Example, Run

T = TypeVar("T")
LANGSMITH = "langsmith:"
"""Prefix of the name of a LangSmith dataset."""
FileFormat = Annotated[
    Literal["jsonl", "langsmith", "csv"] | None,
    Option("--format", help="Format of the file.", show_default="from its extension, else jsonl"),
]
Into = Annotated[
    str, Argument(metavar="DATASET", help="Dataset that gets the examples; created if missing.")
]
Shown = Annotated[int, Option(metavar="N", help="Show at most N examples.")]
Html = Annotated[
    str | None, Option("--html", metavar="FILE", help="Also write a self-contained page to FILE.")
]


def list_(
    at: At = None,
    dataset: Annotated[
        str | None, Option(metavar="NAME", help="Only experiments on this dataset.")
    ] = None,
    limit: Limit = 50,
    json: Json = False,
) -> None:
    """List datasets and experiments.

    Shows each dataset with its newest version and number of examples, then experiments, newest
    first.
    """
    from perdure.evals import Dataset, Experiment

    with client_at(at) as client:
        ask = client.blocking
        experiments = ask.run(Experiment.all(client, dataset=dataset, limit=limit))
        datasets = [] if dataset else ask.run(Dataset.all(client))
    if json:
        for one in (*datasets, *experiments):
            print_json(one)
        return
    if datasets:
        rows = [
            (one.name, str(one.version), str(one.size), utc_time(one.updated_at))
            for one in datasets
        ]
        print(format_table(("DATASET", "VERSION", "EXAMPLES", "CHANGED"), rows, shrinks=(0,)))
    if datasets and experiments:
        print()
    if experiments:
        rows = [
            (one.name, f"{one.dataset} {one.version}", one.target, utc_time(one.created_at))
            for one in experiments
        ]
        print(format_table(("EXPERIMENT", "DATASET", "TARGET", "BEGAN"), rows, shrinks=(0, 1, 2)))
    if not datasets and not experiments:
        print("There is no dataset and no experiment.")


def show(
    experiment: Annotated[str, Argument(help="Name of the experiment.")],
    at: At = None,
    limit: Shown = 20,
    html: Html = None,
    json: Json = False,
) -> None:
    """Show an experiment, finished or not.

    Shows each score with its 95 % interval, the examples that failed, then the others, lowest
    scores first. --json prints one object: `columns`, `scores`, `measures`, `examples`.
    """
    _show(at, [experiment], limit, html, json)


def compare(
    experiments: Annotated[
        list[str],
        Argument(metavar="EXPERIMENT", help="Two or more; the first is the baseline."),
    ],
    at: At = None,
    limit: Shown = 20,
    html: Html = None,
    json: Json = False,
) -> None:
    """Compare experiments with the first one.

    Shows the difference in each score with its interval, and the examples whose scores changed,
    largest changes first.
    """
    if len(experiments) < 2:
        raise BadArgument("Name at least two experiments: the baseline, then the others.")
    _show(at, experiments, limit, html, json)


def _show(
    at: str | None, names: Sequence[str], limit: int, html: str | None, as_json: bool
) -> None:
    from perdure.evals import Experiment

    with client_at(at) as client:
        found = [client.blocking.run(Experiment.load(client, name)) for name in names]
    _report(found, limit, html, as_json)


def _report(experiments: Sequence[Experiment], limit: int, html: str | None, as_json: bool) -> None:
    from perdure.service.views.experiments import view

    shown = view(*experiments)
    if html is not None:
        from perdure.service.views.experiment_page import experiment_page

        with output_file("--html", html) as file:
            file.write(experiment_page(shown).encode())
    if as_json:
        print_json(shown)
    else:
        _print_view(shown, limit)
        if html is not None:
            print(f"\nWritten to {html}.")


def _print_view(shown: ExperimentsView, limit: int) -> None:
    from perdure.service.views import experiment_tables as tables

    names = ", ".join(one.name for one in shown.columns)
    print(f"{paint(one_line(names), 'bold')}  {one_line(tables.headline(shown))}")
    for column in shown.columns:
        if column.unfinished:
            print(f"{one_line(column.name)} is not complete: {column.unfinished} to go.")
    scores = tables.score_table(shown)
    _print_table(scores, shrinks=range(len(scores.headers) - 1, 0, -1))  # differences stay
    if shown.failed:
        _print_table(tables.failure_table(shown, limit), f"{len(shown.failed)} failed")
    if shown.is_comparison:
        rows, what = shown.changed, "changed"
        table = tables.change_table(shown, rows[:limit])
    else:
        rows, what = sorted(shown.examples, key=lambda row: row.total), "examples"
        table = tables.result_table(shown, rows[:limit])
    _print_table(table, f"{len(rows)} {what}")
    if len(rows) > limit:
        print(f"… {len(rows) - limit} more; see --limit, --html or --json.")


def _print_table(table: Table, title: str = "", shrinks: Sequence[int] = ()) -> None:
    print()
    if title:
        print(paint(title, "bold"))
    if table.rows:
        headers = [one_line(one) for one in table.headers]
        print(format_table(headers, table.rows, shrinks=shrinks or range(1, len(headers))))


def run(
    function: Annotated[
        str,
        Argument(
            metavar="MODULE:FUNCTION",
            help="Function that takes runtime and experiment, and returns evaluate(…).",
        ),
    ],
    experiment: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Name of the experiment. An interrupted experiment continues.",
            show_default="the function and the time",
        ),
    ] = None,
    at: At = None,
    baseline: Annotated[
        str | None, Option(metavar="EXPERIMENT", help="Compare the result with this experiment.")
    ] = None,
    at_least: Annotated[
        list[str] | None,
        Option(
            metavar="SCORE=NUMBER",
            help="Exit with 1 if the mean of the score is lower, or an example has no such score; "
            "repeatable.",
        ),
    ] = None,
    limit: Shown = 20,
    html: Html = None,
    json: Json = False,
) -> None:
    """Run an evaluation and show its result.

    Calls your function. --at is a journal's URL, or a Runtime with the graphs that the
    function names.
    """
    from perdure.evals import Experiment
    from perdure.evals.functions import call

    wanted = _bounds(at_least or [])
    found = import_object(function)
    with _runtime(at) as runtime:
        ask = runtime.blocking
        name = experiment or f"{function.partition(':')[2]} {utc_time(ask.now())}"
        made = ask.run(call(found, runtime, name))
        before = [] if baseline is None else [ask.run(Experiment.load(runtime, baseline))]
    _report([*before, made], limit, html, json)
    try:
        for score, least in wanted.items():
            made.check(score, at_least=least)
    except AssertionError as error:
        print(f"perdure: {printable(str(error).splitlines()[0])}", file=sys.stderr)
        raise Exit(1) from None


def _bounds(texts: Sequence[str]) -> dict[str, float]:
    found = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            found[name] = float(value)
        except ValueError:
            name = ""
        if not name:
            raise BadArgument(f"--at-least {text!r} is not a bound: write correct=0.9.")
    return found


def _runtime(at: str | None) -> Runtime:
    """The runtime of a target. A journal alone is enough if the function names no graph."""
    place = at or os.environ.get("PERDURE_URL", "")
    if "://" not in place:
        return runtime_at(at)
    from perdure.runtime import Runtime

    return Runtime(place)


def import_(
    source: Annotated[
        str, Argument(help="A file, - for stdin, or langsmith:NAME for a LangSmith dataset.")
    ],
    dataset: Into,
    at: At = None,
    format: FileFormat = None,
    input: Annotated[
        list[str] | None,
        Option(
            metavar="COLUMN",
            help="CSV: column of the input; repeatable, then the input is an object.",
            show_default="input",
        ),
    ] = None,
    expected: Annotated[
        list[str] | None,
        Option(
            metavar="COLUMN",
            help="CSV: column of the expected output; repeatable. All others are metadata.",
            show_default="expected",
        ),
    ] = None,
) -> None:
    """Add examples to a dataset.

    They come from a file, stdin or LangSmith, which needs `LANGSMITH_API_KEY` and the extra
    `langsmith`. A line of JSON Lines has the fields of `Example`, or LangSmith's `inputs`,
    `outputs`, `metadata` and `split`. An example replaces the one with the same id.
    """
    from perdure.evals import formats, langsmith_datasets

    if source.startswith(LANGSMITH):
        examples = langsmith_datasets.pull(source.removeprefix(LANGSMITH))
    else:
        with _open_source(source) as file:
            kind = format or formats.format_of(source)
            examples = formats.read(file, kind, input=input or (), expected=expected or ())
    with client_at(at, create=True) as client:
        _store(client, dataset, examples)


def export(
    dataset: Annotated[str, Argument(help="Name of the dataset.")],
    to: Annotated[
        str | None,
        Argument(help="A file, or langsmith:NAME for a LangSmith dataset.", show_default="stdout"),
    ] = None,
    at: At = None,
    version: Annotated[
        int | None, Option(metavar="N", help="Version of the dataset.", show_default="the newest")
    ] = None,
    format: FileFormat = None,
) -> None:
    """Write the examples of a dataset.

    An example keeps its id in LangSmith, so a second export updates it. Examples that you remove
    here remain in LangSmith. CSV holds text only, without answers or signals.
    """
    from perdure.evals import Dataset, formats, langsmith_datasets

    to = None if to == "-" else to
    with client_at(at) as client:
        loaded = client.blocking.run(Dataset.load(client, dataset, version))
        examples = client.blocking.run(loaded.examples())
    if to is not None and to.startswith(LANGSMITH):
        written = langsmith_datasets.push(examples, to.removeprefix(LANGSMITH))
    else:
        text = io.StringIO()
        written = formats.write(examples, text, format or formats.format_of(to or ""))
        with output_file("TO", to) as file:
            file.write(text.getvalue().encode())
    if to is not None:
        print(f"{count(written, 'example')} written to {to}.")


def from_runs(
    dataset: Into,
    run: Annotated[
        list[str] | None, Argument(metavar="RUN", help=IDS_HELP, show_default="all that match")
    ] = None,
    at: At = None,
    expected: Annotated[
        Literal["answer", "output"],
        Option(
            "--expected",
            help="Expected output: what a person approved or edited last, or what the run "
            "returned.",
        ),
    ] = "answer",
    state: States = None,
    graph: Graph = None,
    thread: Thread = None,
    metadata: Metadata = None,
    since: Since = None,
    until: Until = None,
    dry_run: DryRun = False,
) -> None:
    """Make examples from real runs.

    With `--expected answer`, runs without an approval or edit by a person are left out. Runs of
    evaluations always are.
    """
    from perdure.evals.from_runs import from_runs as make

    filters = parse_filters(state, graph, thread, metadata, since, until)
    with client_at(at) as client:
        runs = _selected(client, run or [], filters)
        examples = client.blocking.run(make(client, runs, expected=expected))
        if dry_run:
            rows = [
                (one.id, one_line(one.input, 60), one_line(one.expected, 60)) for one in examples
            ]
            if rows:
                print(format_table(("RUN", "INPUT", "EXPECTED"), rows, shrinks=(1, 2)))
            print(f"{count(len(rows), 'example')} of {count(len(runs), 'run')}.")
        elif examples:
            _store(client, dataset, examples)
        else:
            what = "was approved or edited by a person" if expected == "answer" else "is done"
            print(f"None of {count(len(runs), 'run')} {what}.")


def _selected(client: Client, prefixes: list[str], filters: dict[str, Any]) -> list[Run]:
    """Runs by the beginning of their ids, or by their properties; not those of evaluations."""
    from perdure.cli.run_lookup import PAGE, all_pages

    if prefixes and any(filters.values()):
        raise BadArgument("Name runs, or select them with options; not both.")
    ask = client.blocking
    if prefixes:
        return [ask.get(ask.find(prefix).id) for prefix in prefixes]
    pages = all_pages(lambda last: ask.runs(**filters, after=last, limit=PAGE))
    return [one for one in pages if not one.graph.startswith("evals:")]


def _store(client: Client, dataset: str, examples: Sequence[Example]) -> None:
    from perdure.evals import Dataset

    stored = client.blocking.run(Dataset.create(client, dataset, examples))
    size = len(client.blocking.run(stored.examples()))
    said = f"{count(len(examples), 'example')} read; {dataset} version {stored.version}"
    print(f"{said} has {count(size, 'example')}.")


@contextlib.contextmanager
def _open_source(path: str) -> Iterator[TextIO]:
    if path == "-":
        yield sys.stdin
        return
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            yield file
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadArgument(f"{path}: {why}.") from error
