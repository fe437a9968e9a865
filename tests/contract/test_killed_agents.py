"""Agents of every shape, killed anywhere, come to the same end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from matrix.__main__ import SHAPES
from matrix.graphs import INPUTS
from matrix.kills.__main__ import fork_servers, kill
from matrix.kills.io_stops import is_supported
from matrix.kills.judge import SqliteFiles
from matrix.kills.process import ForkServer
from matrix.kills.scenarios import SCENARIOS
from perdure.testing.crashtest import CrashTest
from tests.support.crashtest_server import warm as warm
from tests.support.sweep import examples

pytestmark = pytest.mark.usefixtures("warm")


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_an_agent_of_every_shape_survives_being_killed(shape: str) -> None:
    test = CrashTest(f"matrix.graphs:{shape}", INPUTS[shape], limit=examples(12, 6), recovery=0)
    test.run().check()


needs_stops = pytest.mark.skipif(not is_supported(), reason="needs seccomp's notifications")


@pytest.fixture(scope="module")
def slots() -> Iterator[list[list[ForkServer]]]:
    with fork_servers(jobs=1, hash_seeds=2) as servers:
        yield servers


@pytest.mark.slow
@needs_stops
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_agent_survives_kills_at_its_writes(
    scenario: str, slots: list[list[ForkServer]], tmp_path: Path
) -> None:
    trials = kill(scenario, SqliteFiles(tmp_path), 8, slots, "sample")
    assert not [str(trial) for trial in trials if trial.findings]
