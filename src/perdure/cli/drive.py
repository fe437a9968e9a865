"""`perdure worker` and `perdure tick`: drive what is due, until told to stop or once."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.place import DRIVEN, load, speak

Place = Annotated[str, typer.Argument(metavar="RUNTIME", help=DRIVEN)]
Quiet = Annotated[bool, typer.Option("--quiet", help="Only warnings.")]


def worker(
    runtime: Place,
    concurrency: Annotated[int, typer.Option(metavar="N", help="Segments at once.")] = 50,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", help="For steps to end when it is told to stop.")
    ] = 10,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Stop when nothing is due.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Drive runs until SIGTERM or SIGINT."""
    import asyncio
    import logging
    from dataclasses import asdict
    from datetime import timedelta

    speak(quiet=quiet)
    log = logging.getLogger("perdure")
    found = load(runtime)

    async def work() -> None:
        async with found:
            graphs = ", ".join(sorted(found.graphs)) or "nothing"
            log.info("working on %s at %s", graphs, found.url)
            counts = await found.work(
                concurrency=concurrency, until_idle=until_idle, grace=timedelta(seconds=grace)
            )
            log.info("stopped: %s", _told(asdict(counts)))

    asyncio.run(work())


def tick(
    runtime: Place,
    limit: Annotated[int, typer.Option(metavar="N", help="Segments.")] = 25,
    budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Claim nothing after that.")
    ] = None,
    concurrency: Annotated[
        int, typer.Option(metavar="N", help="Segments at once; 1 is one by one.")
    ] = 10,
    quiet: Quiet = False,
) -> None:
    """Drive what is due, then end: for a cron."""
    import asyncio
    from datetime import timedelta

    from perdure.cli.tell import print_json

    speak(quiet=quiet)
    found = load(runtime)

    async def drive() -> None:
        async with found:
            counts = await found.tick(
                limit,
                budget=None if budget is None else timedelta(seconds=budget),
                concurrency=concurrency,
                handle_signals=True,
            )
            print_json(counts)

    asyncio.run(drive())


def _told(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "nothing done"
