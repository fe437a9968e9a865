"""`perdure worker` and `perdure tick`: drive due runs, until stopped or once."""

from __future__ import annotations

import sys
from typing import Annotated

from typer import Option

from perdure.cli.options import Concurrency, Place, RuntimeAt
from perdure.cli.output import print_json
from perdure.cli.target import observed, one_place, runtime_at

Quiet = Annotated[bool, Option("--quiet", help="Log warnings only.")]


def worker(
    place: Place = None,
    at: RuntimeAt = None,
    concurrency: Concurrency = 50,
    grace: Annotated[float, Option(metavar="SECONDS", help="Time for steps to end.")] = 10,
    until_idle: Annotated[bool, Option("--until-idle", help="Stop when nothing is due.")] = False,
    quiet: Quiet = False,
) -> None:
    """Drive runs until SIGTERM or SIGINT."""
    import asyncio
    import logging
    from dataclasses import asdict
    from datetime import timedelta

    configure_logging(quiet=quiet)
    log = logging.getLogger("perdure")
    rt = observed(runtime_at(one_place(place, at)))

    async def work() -> None:
        async with rt:
            log.info("working on %s at %s", ", ".join(rt.graphs) or "nothing", rt.url)
            counts = await rt.work(
                concurrency=concurrency, until_idle=until_idle, grace=timedelta(seconds=grace)
            )
            done = [f"{count} {name}" for name, count in asdict(counts).items() if count]
            log.info("stopped: %s", ", ".join(done) or "nothing done")

    asyncio.run(work())


def tick(
    place: Place = None,
    at: RuntimeAt = None,
    limit: Annotated[int, Option(metavar="N", help="Segments in total.")] = 25,
    budget: Annotated[
        float | None, Option(metavar="SECONDS", help="Stop claiming after this long.")
    ] = None,
    concurrency: Concurrency = 10,
    quiet: Quiet = False,
) -> None:
    """Drive what is due, then exit: for a cron."""
    import asyncio
    from datetime import timedelta

    configure_logging(quiet=quiet)
    rt = observed(runtime_at(one_place(place, at)))

    async def drive() -> None:
        async with rt:
            counts = await rt.tick(
                limit,
                budget=None if budget is None else timedelta(seconds=budget),
                concurrency=concurrency,
                handle_signals=True,
            )
            print_json(counts)

    asyncio.run(drive())


def configure_logging(*, quiet: bool) -> None:
    """Log to stderr: a line per segment, or warnings only."""
    import logging

    level = logging.WARNING if quiet else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger("perdure").setLevel(level)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request to D1
