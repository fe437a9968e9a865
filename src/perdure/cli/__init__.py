"""The command line: `perdure worker`, `tick`, `effects`, `settle`, `reflections`,
`doctor`, `crashtest`.

Exit codes: 0 all is well, 1 the doctor found something, 2 wrong use or no database.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta

from perdure import __version__, doctor
from perdure.cli import crashtest, effects, reflections
from perdure.cli.place import check_there, load
from perdure.errors import Error
from perdure.journal import connect


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    level = logging.WARNING if getattr(arguments, "quiet", False) else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger("perdure").setLevel(level)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except Error as error:
        print(f"perdure: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever reads it has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="perdure", description="Durable runs of LangGraph agents."
    )
    parser.add_argument("--version", action="version", version=f"perdure {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    worker = commands.add_parser("worker", help="drive runs until told to stop")
    worker.add_argument("runtime", help="where the Runtime is: module:name")
    worker.add_argument("--concurrency", type=int, default=50, metavar="N", help="default 50")
    worker.add_argument(
        "--grace", type=float, default=10, metavar="SECONDS", help="for steps to end; default 10"
    )
    worker.add_argument("--until-idle", action="store_true", help="stop when nothing is due")
    worker.add_argument("--quiet", action="store_true", help="only warnings")
    worker.set_defaults(run=_worker)

    tick = commands.add_parser("tick", help="drive what is due, then return; for a cron")
    tick.add_argument("runtime", help="where the Runtime is: module:name")
    tick.add_argument("--limit", type=int, default=25, metavar="N", help="segments; default 25")
    tick.add_argument("--budget", type=float, metavar="SECONDS", help="claim nothing after that")
    tick.add_argument("--concurrency", type=int, default=10, metavar="N", help="1: one by one")
    tick.add_argument("--quiet", action="store_true", help="only warnings")
    tick.set_defaults(run=_tick)

    check = commands.add_parser("doctor", help="check what must be true of a journal")
    check.add_argument("url", nargs="?", help="default: PERDURE_URL")
    check.set_defaults(run=_doctor)

    effects.add(commands)
    reflections.add(commands)
    crashtest.add(commands)
    return parser


def _worker(arguments: argparse.Namespace) -> int:
    runtime = load(arguments.runtime)
    log = logging.getLogger("perdure")

    async def work() -> None:
        async with runtime:
            graphs = ", ".join(sorted(runtime.graphs)) or "nothing"
            log.info("working on %s at %s", graphs, runtime.url)
            counts = await runtime.work(
                concurrency=arguments.concurrency,
                until_idle=arguments.until_idle,
                grace=timedelta(seconds=arguments.grace),
            )
            log.info("stopped: %s", _told(asdict(counts)))

    asyncio.run(work())
    return 0


def _tick(arguments: argparse.Namespace) -> int:
    runtime = load(arguments.runtime)
    budget = None if arguments.budget is None else timedelta(seconds=arguments.budget)

    async def tick() -> None:
        async with runtime:
            counts = await runtime.tick(
                arguments.limit,
                budget=budget,
                concurrency=arguments.concurrency,
                signals=True,
            )
            print(json.dumps(asdict(counts)))

    asyncio.run(tick())
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    url = check_there(arguments.url or "")
    journal = connect(url)
    try:
        findings = journal.do(doctor.examine())
    finally:
        journal.close()
    for remark in doctor.remarks(url):
        print(f"note: {remark}")
    for finding in findings:
        print(f"{finding.problem}: thread {finding.thread_id!r}, {finding.id} ({finding.detail})")
    if findings:
        print(f"{len(findings)} found; none of this should happen. Please report it.")
        return 1
    print(f"All {len(doctor.INVARIANTS)} invariants hold.")
    return 0


def _told(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "nothing done"
