"""The crash test tells careful agents from careless ones.

Each agent of `tests/support/crashtest_agents.py` has at most one fault; the test finds it, at the
points where it is and nowhere else, with its line.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure.testing
from perdure.cli import main
from perdure.errors import BadArgument
from perdure.testing.crashtest import CrashTest, Outcome, Point, Problem, Report, choose
from perdure.testing.crashtest.drive import agreeing_answer
from perdure.testing.crashtest.judge import differences, plain
from perdure.testing.crashtest.observer import Phases
from tests.support import crashtest_agents
from tests.support.commands import spawn
from tests.support.crashtest_server import warm as warm
from tests.support.polling import until
from tests.support.sweep import EVERY_POINT, examples

pytestmark = pytest.mark.usefixtures("warm")
AGENTS = "tests.support.crashtest_agents"
SOURCE = Path(crashtest_agents.__file__)
LIMIT = None if EVERY_POINT else 24
"""Points of the longest test."""
MANY, FEW = examples(30, 12), examples(12, 5)
"""Points of the others: those around what an agent does outside come first."""


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Not below /dev, where the suite has its files: crash tests take what is there for devices."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


def line(comment: str) -> str:
    """`file:line` of the line with this comment."""
    lines = SOURCE.read_text().splitlines()
    [number] = [n for n, text in enumerate(lines, 1) if text.endswith(f"# {comment}")]
    return f"tests/support/crashtest_agents.py:{number}"


def kill(name: str, input: Any = None, **options: Any) -> Report:
    options = {"recovery": 0, **options}
    return perdure.testing.crashtest(f"{AGENTS}:{name}", {} if input is None else input, **options)


def outcomes(report: Report) -> list[Outcome]:
    return [trial.outcome for trial in report.trials]


# -- careful agents


@pytest.mark.slow
def test_an_agent_with_two_recorded_effects_is_killed_everywhere(warm: None) -> None:
    """One report for all that is said of it: it is made once, and not in each test process."""
    report = kill("one_mail", recovery=1, limit=LIMIT)
    effects_happen_once(report)
    recoveries_are_killed_too_at_every_kind_of_point(report)
    an_effect_killed_after_its_call_is_called_again_with_its_key(report)
    nodes_and_phases_are_named(report)


def effects_happen_once(report: Report) -> None:
    report.check()
    assert report.state == "done"
    assert report.reached > 60
    assert len(report.first) == len(report.points) == (LIMIT or report.reached)
    assert {Point("effect mail.after"), Point("effect mail.after", 2)} <= set(report.points)
    assert set(outcomes(report)) <= {Outcome.OK, Outcome.AGAIN, Outcome.UNREACHED}


def recoveries_are_killed_too_at_every_kind_of_point(report: Report) -> None:
    assert len(report.second) > 0.8 * len(report.points)
    names = {trial.kills[1].name for trial in report.second}
    all_kinds = {"claim.before", "commit.after", "effect mail.before", "end_segment.before"}
    assert names >= (all_kinds if EVERY_POINT else {"commit.after"})


def an_effect_killed_after_its_call_is_called_again_with_its_key(report: Report) -> None:
    [trial] = [one for one in report.first if one.kills == (Point("effect mail.after"),)]
    assert trial.outcome is Outcome.AGAIN
    assert trial.called_again == ("mail",)


def nodes_and_phases_are_named(report: Report) -> None:
    phases = [point.phase for point in report.points]
    expected = [
        "while the run was accepted",
        "before its first node",
        "right before effect mail in node mails",
        "in node mails, after effect mail",
        "after node mails ended",
    ]
    if LIMIT is not None:
        expected.remove("right before effect mail in node mails")  # a sample may not have it
    order = [phases.index(phase) for phase in expected]
    assert order == sorted(order)
    assert all(phases)
    assert "in node mails, after effect mail" in str(report)
    assert "write_effect" not in str(report), "statements are perdure's own"


@pytest.mark.slow
def test_sleeps_pass_and_questions_are_answered(url: str) -> None:
    given = None if url.startswith("sqlite") else url
    report = kill("careful", limit=FEW, url=given, answer="fine")
    report.check()
    assert report.result["output"]["log"][-1] == "fine"
    assert [trial.state for trial in report.trials] == ["done"] * FEW


@pytest.mark.slow
def test_a_run_that_waits_for_a_signal_in_the_end_is_judged_as_it_waits() -> None:
    report = kill("listener", limit=FEW)
    report.check()
    assert report.state == "waiting"
    assert report.tally.effects["mail"].total() == 1, "the first signal timed out"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["functional", "factory", "greeter"])
def test_an_entrypoint_a_function_and_messages_with_drawn_ids_are_fine(name: str) -> None:
    kill(name, {"log": ["ana", "ben"]}, limit=FEW).check()


@pytest.mark.slow
def test_a_held_run_is_told_and_no_failure() -> None:
    report = kill("careful_payer", limit=MANY)
    assert report.ok
    assert report.counts["held"] > 0
    held = next(trial for trial in report.trials if trial.state == "held")
    assert held.outcome is Outcome.HELD
    assert "pay" in held.reason
    assert "held for a person" in report.verdict()


@pytest.mark.slow
def test_what_an_effect_and_its_question_to_the_far_side_do_is_judged_by_its_key(
    tmp_path: Path,
) -> None:
    report = kill("careful_writer", {"folder": str(tmp_path)}, limit=MANY)
    report.check()
    assert (tmp_path / "asked").exists(), "nobody asked, so nothing was shown"
    assert report.counts["again_with_key"] > 0


# -- careless agents


@pytest.mark.slow
def test_an_effect_that_never_asks_for_its_key_is_found_where_it_is_called_again() -> None:
    report = kill("one_letter", limit=MANY)
    [group] = report.groups()
    assert group.finding.problem is Problem.DUPLICATED
    assert group.finding.what == "effect letter"
    assert "never asks for perdure.key()" in group.finding.detail
    assert report.counts["again_with_key"] == 0
    kill("one_letter", limit=MANY, harmless=["effect letter"]).check()


@pytest.mark.slow
def test_a_line_that_writes_without_an_effect_is_found_where_it_repeats(tmp_path: Path) -> None:
    report = kill("careless", {"folder": str(tmp_path)}, limit=MANY)
    [group] = report.groups()
    assert group.finding.problem is Problem.DUPLICATED
    assert group.finding.where == line("the line that appends")
    assert "writes sent" in group.finding.detail
    assert report.trials[0].outcome is Outcome.OK, "nothing was written before the first point"
    assert report.trials[-1].outcome is Outcome.OK, "all was on disk at the last point"
    assert 0 < report.counts["duplicated"] < MANY
    with pytest.raises(AssertionError, match="outward action without @effect") as failed:
        report.check()
    assert "I am about to write" in str(failed.value), "what the agent printed is shown"


class Count(http.server.BaseHTTPRequestHandler):
    """Counts what it is sent."""

    posts = 0

    def do_POST(self) -> None:
        Count.posts += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def far_side() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Count) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
def test_a_line_that_posts_without_an_effect_is_found_and_the_far_side_agrees() -> None:
    Count.posts = 0
    with far_side() as port:
        report = kill("poster", {"port": port}, limit=FEW)
    [group] = report.groups()
    assert group.finding.where == line("the line that posts")
    details = [one.detail for trial in report.trials for one in trial.findings]
    assert any("sends over HTTP" in detail for detail in details)
    runs = 2 + len(report.trials)  # two of which nobody killed
    unreached = report.counts["not_reached"] * 2
    assert runs + report.counts["duplicated"] <= Count.posts
    assert Count.posts <= runs + report.counts["duplicated"] + unreached


@pytest.mark.slow
def test_what_a_library_does_in_a_task_of_its_own_is_told_with_its_node() -> None:
    with far_side() as port:
        report = kill("connector", {"port": port}, limit=FEW)
    [group] = report.groups()
    assert group.finding.where == "node 'connects'"
    assert f"connects to 127.0.0.1:{port}" in group.finding.detail


@pytest.mark.slow
def test_state_kept_in_memory_is_found_as_another_result() -> None:
    report = kill("forgetful", limit=MANY)
    [group] = report.groups()
    assert group.finding.problem is Problem.DIFFERENT
    assert "'log'" in group.finding.what
    assert "1, then 0" in group.finding.detail
    assert report.counts["different"] == len(group.trials) < MANY


@pytest.mark.slow
def test_what_varies_by_itself_is_told_once_and_can_be_left_out() -> None:
    report = kill("gambler", limit=4)
    [group] = report.groups()
    assert group.finding.problem is Problem.VARIES
    assert set(outcomes(report)) <= {Outcome.OK, Outcome.UNREACHED}
    assert kill("gambler", limit=4, ignore=["log"]).ok


@pytest.mark.slow
def test_a_model_that_is_called_again_is_found() -> None:
    report = kill("chatter", limit=FEW)
    [group] = report.groups()
    assert group.finding.problem is Problem.MODEL
    assert group.finding.where == line("the line that asks a model")
    assert kill("chatter", limit=FEW, harmless=["tests/support/crashtest_agents.py"]).ok


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "told"),
    [
        pytest.param("broken", "ValueError: no such contact", id="raises"),
        pytest.param("hanging", line("the line that hangs"), id="never ends"),
    ],
)
def test_an_agent_that_does_not_end_by_itself_is_not_killed(name: str, told: str) -> None:
    report = kill(name, deadline=3)
    assert not report.ok
    assert report.trials == []
    assert told in report.findings[0].detail
    assert "without a kill" in report.verdict()


@pytest.mark.slow
@pytest.mark.parametrize("stock", [False, True], ids=["perdure", "langgraph"])
def test_nothing_is_written_into_the_journal_of_the_agent(tmp_path: Path, stock: bool) -> None:
    report = kill("starting", {"folder": str(tmp_path)}, stock=stock)
    assert not report.ok
    assert report.trials == []
    assert "live.db while it runs" in report.findings[0].detail
    assert not (tmp_path / "live.db").exists()


@pytest.mark.slow
def test_an_agent_that_takes_its_processes_with_it_is_told() -> None:
    report = kill("parricide")
    assert not report.ok
    assert "is gone" in report.findings[0].detail


# -- beside stock LangGraph


@pytest.mark.slow
@pytest.mark.parametrize("resume", ["none", "input"])
def test_langgraph_alone_repeats_what_perdure_does_not(resume: Any) -> None:
    report = kill("one_mail", stock=True, resume=resume)
    assert 0 < report.counts["duplicated"] < report.counts["points"]
    by_point = {trial.kills[0]: trial for trial in report.trials}
    problems = {point: {one.problem for one in t.findings} for point, t in by_point.items()}
    assert Problem.DUPLICATED not in problems[Point("effect mail.before")], "it was not called yet"
    assert Problem.DUPLICATED in problems[Point("effect mail.after")]
    assert (report.counts["different"] > 0) == (resume == "input")
    assert f"invoke({'None' if resume == 'none' else 'input'})" in report.driver


@pytest.mark.slow
def test_stock_postgres_is_driven_too(postgres_url: str) -> None:
    report = kill("one_mail", stock=True, url=postgres_url, limit=6)
    assert report.database == "PostgreSQL"
    assert report.counts["unrecoverable"] == 0


# -- the parts


def test_ids_that_are_drawn_anew_are_compared_by_where_they_stand() -> None:
    one, two, three = (f"{n}{n}{n}{n}0000-0000-7000-8000-00000000000{n}" for n in "123")
    assert not differences({"a": one, "b": [one, two]}, {"a": two, "b": [two, three]})
    assert differences({"a": one, "b": one}, {"a": two, "b": three}) == [
        ("b", f"{one!r}, then {three!r}")
    ]
    assert differences({"a": one, "b": two}, {"a": three, "b": three})


def test_differences_name_the_path() -> None:
    found = differences({"a": {"b": [1, 2]}, "c": 1}, {"a": {"b": [1, 3, 4]}, "d": 2})
    assert [path for path, _ in found] == ["a.b[1]", "a.b", "c", "d"]
    assert differences({"a": 1}, {"a": True})
    assert not differences({"a": {"b": 1}}, {"a": {"b": 2}}, ["b"])
    assert not differences({"a": [1]}, {"a": [2, 3]}, ["a"])


def test_whatever_a_state_holds_becomes_plain() -> None:
    class Thing:
        pass

    assert plain({1: {"b", "a"}, "x": (b"12", Thing)})["1"] == ["a", "b"]
    assert plain(Thing()) == plain(Thing()), "an address is no part of it"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one_letter", "careless", "slower", "teller"])
def test_one_point_is_enough_to_find_the_one_thing_that_happens_twice(
    name: str, tmp_path: Path
) -> None:
    """The points right after a call of an effect, an outward action or a report come first. They
    are right after it in each process, however many commits came before."""
    report = kill(name, {"folder": str(tmp_path)}, limit=1)
    assert report.counts["duplicated"] == 1


def test_points_right_after_something_left_come_first_and_the_others_are_spread() -> None:
    points = [Point(f"p{n}.before", action=n if n in (4, 10) else 0) for n in range(15)]

    def chosen(limit: int | None) -> list[int]:
        return [points.index(point) for point in choose(points, limit)]

    assert chosen(1) == [10]
    assert chosen(2) == [4, 10]
    assert chosen(4) == [0, 4, 10, 14]
    assert chosen(5) == [0, 4, 7, 10, 14]
    assert chosen(15) == chosen(99) == chosen(None) == list(range(15))


# -- phases


def test_waits_branches_and_endings_are_phases_too() -> None:
    phases = Phases()
    assert phases.at("claim.before", "") == "before its first node"
    phases.enter(1, "left")
    phases.enter(2, "right")
    assert phases.at("insert_effect.before", "") == "in node left and right"
    phases.leave(1, "ended")
    phases.leave(2, "began to wait")
    assert phases.at("insert_wait.before", "") == "after node right began to wait"
    phases.during = "while an answer was stored"
    assert phases.at("answer_wait.before", "") == "while an answer was stored"


# -- without a kill


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "node"), [("writes_first", "writes_then_asks"), ("tells_first", "tells_then_asks")]
)
def test_what_happens_twice_without_any_kill_is_found(name: str, node: str, tmp_path: Path) -> None:
    """A node runs again from its first line after its question is answered."""
    report = kill(name, {"folder": str(tmp_path)}, limit=1)
    [finding] = report.findings
    assert finding.problem is Problem.DUPLICATED
    assert f"node '{node}' runs again from its first line after it waited" in finding.detail
    assert not report.ok
    assert "already without a kill" in str(report)


@pytest.mark.slow
def test_what_a_node_does_again_in_a_loop_is_no_finding(tmp_path: Path) -> None:
    report = kill("loops", {"folder": str(tmp_path)}, limit=1)
    assert report.findings == ()


# -- questions


@pytest.mark.slow
@pytest.mark.parametrize("name", ["approved_agent", "approved_per_call", "inbox"])
def test_a_question_in_a_known_dialect_is_agreed_to(name: str) -> None:
    report = kill(name, {"messages": [{"role": "user", "content": "go", "id": "m"}]}, limit=2)
    report.check()
    assert report.state == "done"
    assert "tool deleted everything" in str(report.result)


def test_an_answer_agrees_in_the_dialect_of_the_question() -> None:
    request = {"action_request": {"action": "pay", "args": {}}, "config": {"allow_accept": True}}
    silent = {"action_request": {}, "config": {"allow_accept": False, "allow_respond": True}}
    batch = {"action_requests": [{"name": "a"}, {"name": "b"}], "review_configs": []}
    assert agreeing_answer(batch) == {"decisions": [{"type": "approve"}, {"type": "approve"}]}
    assert agreeing_answer({"type": "tool_approval", "name": "a"}) == {"type": "approve"}
    assert agreeing_answer([request]) == [{"type": "accept", "args": None}]
    assert agreeing_answer(request) == [{"type": "accept", "args": None}]
    assert agreeing_answer([silent]) == [{"type": "response", "args": "..."}]
    for other in ("Send it?", {"draft": 1}, [], [1], None):
        assert agreeing_answer(other) == {"ok": True}


def test_input_that_is_no_json_is_refused() -> None:
    with pytest.raises(BadArgument, match="input has to be JSON"):
        CrashTest(f"{AGENTS}:careful", {"x": object()})


# -- the command


@pytest.mark.slow
def test_the_command_prints_the_report_and_fails_if_something_was_found(tmp_path: Path) -> None:
    given = tmp_path / "input.json"
    given.write_text(json.dumps({"folder": str(tmp_path)}))
    done = spawn("crashtest", f"{AGENTS}:careless", "--input", f"@{given}", "--limit", "4")
    assert done.code == 1, done.err
    assert line("the line that appends") in done.out
    assert "8 trials, killed at 4 points" in done.out, "once more during recovery"


@pytest.mark.slow
def test_the_command_succeeds_if_nothing_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["crashtest", f"{AGENTS}:factory", "--input", "{}", "--limit", "2"])
    told, err = capsys.readouterr()
    assert code == 0, err
    assert "nothing duplicated, nothing lost" in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere:graph"], "no module 'nowhere'"),
        ([f"{AGENTS}:nothing"], "has no 'nothing'"),
        ([f"{AGENTS}:number"], "It is 7, and no StateGraph"),
        (["agents"], "names no graph"),
        ([f"{AGENTS}:careful", "--input", "{"], "--input { is not JSON"),
        ([f"{AGENTS}:careful", "--input", "@nowhere"], "No such file"),
        ([f"{AGENTS}:careful", "--resume", "input"], "--resume needs --stock"),
        ([f"{AGENTS}:careful", "--url", "mysql://x"], "Leave the URL out"),
        ([f"{AGENTS}:careful", "--recovery", "-1"], "at least 0"),
        ([f"{AGENTS}:careful", "--limit", "0"], "at least 1"),
    ],
)
def test_wrong_use_is_told_and_ends_with_2(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["crashtest", *arguments]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_a_crash_test_that_is_ended_early(
    tmp_path: Path, number: signal.Signals
) -> None:
    pids, rest = tmp_path / "pids", tmp_path / "rest"
    pids.mkdir()
    rest.mkdir()
    test = subprocess.Popen(
        [sys.executable, "-m", "perdure", "crashtest", f"{AGENTS}:slow", "--deadline", "60"],
        env={**os.environ, "CRASHTEST_PIDS": str(pids), "TMPDIR": str(rest)},
        stdout=subprocess.PIPE,
        text=True,
    )
    until(lambda: list(pids.glob("node-*")), "a node that runs")
    test.send_signal(number)
    out, _ = test.communicate(timeout=30)
    if number == signal.SIGINT:
        assert test.returncode == 130
        assert "Interrupted" in out
    found = [int(path.name.partition("-")[2]) for path in pids.iterdir()]
    assert len(found) >= 2
    until(lambda: not any(map(is_alive, found)), f"the end of {found}")
