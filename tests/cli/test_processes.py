"""The command line in processes of its own: what it drives, how it stops, what it says.

Exit codes are part of it, since a supervisor reads nothing else: 0 for a worker that drained, 1 for
a journal in which something is wrong, 2 for wrong use.
"""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import perdure
from perdure.testing.local_server import free_port
from perdure.types import Run, State
from tests.contract.test_stopping import accept, calls, ended, read
from tests.contract.test_stopping import cli as cli
from tests.contract.test_stopping import folder as folder
from tests.support.cli_process import CliProcess
from tests.support.polling import until
from tests.support.raw import execute

Start = Callable[..., CliProcess]


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        text: str = page.read().decode()
    return text


# -- driving and stopping


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_worker_drives_what_is_due_until_it_is_told_to_stop(
    sqlite_url: str, cli: Start, number: signal.Signals
) -> None:
    """And says meanwhile what it did."""
    port = free_port()
    [before] = accept(sqlite_url, "quick")
    worker = cli("worker", "agents:rt", "--metrics", str(port), url=sqlite_url)

    def is_done(run: Run) -> bool:
        assert not worker.is_over(), worker.text
        return read(sqlite_url, run).state is State.DONE

    until(lambda: is_done(before))
    [later] = accept(sqlite_url, "quick")
    until(lambda: is_done(later))
    until(lambda: 'perdure_runs_ended_total{graph="quick",state="done"} 2' in scraped(port))
    assert not worker.is_over()
    worker.send(number)
    code, out, err = ended(worker)
    assert (code, out) == (0, "")
    assert f"{number.name}: draining" in err
    assert "working on never, quick, steps" in err
    assert "stopped: 2 claimed, 2 done" in err


@pytest.mark.slow
def test_a_worker_that_is_asked_to_drain_exits_and_another_finishes_the_run(
    url: str, folder: Path, cli: Start
) -> None:
    [run] = accept(url, "steps")
    worker = cli("worker", "agents:rt", url=url)
    until(lambda: calls(folder))
    until(lambda: re.search(rf":{worker.pid} +alive +1 of 50", ended(cli("workers", url))[1]))
    code, out, _ = ended(cli("drain", str(worker.pid), "--by", "ana", "--at", url))
    assert (code, out.endswith("was asked to drain.\n")) == (0, True)
    assert "draining" in ended(cli("workers", url))[1]
    worker.says("draining, asked by ana")
    (folder / "go").touch()
    code, _, err = ended(worker)
    assert code == 0
    assert "Traceback" not in err
    assert read(url, run).state is State.PENDING
    assert "No worker" in ended(cli("workers", url))[1]
    assert ended(cli("worker", "agents:rt", "--until-idle", url=url))[0] == 0
    assert read(url, run).output == {"log": ["in", "first", "quick"]}
    assert calls(folder) == ["first"]
    code, _, err = ended(cli("drain", str(worker.pid), "--at", url))
    assert (code, "There is no worker" in err) == (2, True)


@pytest.mark.slow
def test_a_killed_worker_is_known_to_be_dead_on_its_host(
    sqlite_url: str, folder: Path, cli: Start
) -> None:
    worker = cli("worker", "agents:rt", url=sqlite_url)
    with perdure.Runtime(sqlite_url) as rt:
        until(lambda: rt.blocking.workers())
        worker.send(signal.SIGKILL)
        worker.ends()
        until(lambda: [one.state for one in rt.blocking.workers()] == ["dead"])


@pytest.mark.slow
def test_until_idle_stops_by_itself_when_nothing_is_due(url: str, cli: Start) -> None:
    runs = accept(url, "quick", 12)
    worker = cli("worker", "agents:Held.rt", "--until-idle", "--concurrency", "3", url=url)
    code, _, err = ended(worker)
    assert code == 0
    assert "12 done" in err
    assert {read(url, run).state for run in runs} == {State.DONE}


@pytest.mark.slow
def test_a_tick_drives_up_to_its_limit_and_prints_its_counts(sqlite_url: str, cli: Start) -> None:
    url = sqlite_url
    runs = accept(url, "quick", 5)
    code, out, err = ended(cli("tick", "agents:rt", "--limit", "3", "--log-json", url=url))
    counts, lines = json.loads(out), [json.loads(line) for line in err.splitlines()]
    assert (code, counts["claimed"], counts["done"]) == (0, 3, 3)
    events = [(one["run"], one["graph"], one["segment"]) for one in lines if "event" in one]
    assert {*events} == {(run.id, "quick", 1) for run in runs[:3]}
    assert sum(one.get("event") == "done" for one in lines) == 3
    code, out, err = ended(cli("tick", "agents:rt", "--quiet", "--budget", "30", url=url))
    counts = json.loads(out)
    assert (code, counts["claimed"], counts["done"], err) == (0, 2, 2, "")


# -- wrong use


WRONG = {
    "no name": (("worker", "agents"), "use module:name"),
    "an empty name": (("tick", "agents:"), "use module:name"),
    "no such module": (("worker", "nowhere:rt"), "There is no module 'nowhere'"),
    "no such name": (("tick", "agents:missing"), "The module 'agents' has no 'missing'."),
    "another thing": (("worker", "agents:number"), "is not a perdure.Runtime but 7"),
    "no concurrency": (("worker", "agents:rt", "--concurrency", "0"), "at least 1"),
    "no limit": (("tick", "agents:rt", "--limit", "0"), "must be at least 1"),
    "no database there": (("doctor", "--at", "postgresql://127.0.0.1:1/db"), "127.0.0.1"),
}


@pytest.mark.slow
def test_wrong_use_is_told_in_a_sentence_with_exit_code_2(sqlite_url: str, cli: Start) -> None:
    children = {name: cli(*arguments, url=sqlite_url) for name, (arguments, _) in WRONG.items()}
    for name, (_, sentence) in WRONG.items():
        code, out, err = ended(children[name])
        assert (name, code, out) == (name, 2, "")
        assert sentence in err, name
        assert any(line.startswith("perdure: ") for line in err.splitlines()), name
        assert err.splitlines()[-1].startswith("perdure: "), name  # one line
        assert "Traceback" not in err, name


@pytest.mark.slow
def test_a_mistake_inside_the_module_is_shown_where_it_is(folder: Path, cli: Start) -> None:
    (folder / "broken.py").write_text("import not_installed_anywhere\n")
    (folder / "wrong.py").write_text("import json\n\njson.loads('{')\n")
    (folder / "typo.py").write_text("def f(:\n")
    missing = "broken raised ModuleNotFoundError: No module named 'not_installed_anywhere'"
    told = {
        ("worker", "broken:rt"): f"perdure: {missing} (broken.py, line 1).\n",
        ("tick", "wrong:rt"): "perdure: wrong raised JSONDecodeError: .* \\(wrong.py, line 3\\).\n",
        (
            "runs",
            "--at",
            "typo:rt",
        ): "perdure: typo raised SyntaxError: .* \\(typo.py, line 1\\).\n",
        ("crashtest", "wrong:graph"): (
            "perdure: wrong:graph cannot be tested. wrong raised JSONDecodeError: .* "
            "\\(wrong.py, line 3\\).\n"
        ),
    }
    children = {arguments: cli(*arguments) for arguments in told}
    for arguments, sentence in told.items():
        code, out, err = ended(children[arguments])
        assert (arguments, code, out) == (arguments, 2, "")
        assert err == sentence or re.fullmatch(sentence, err), err


# -- the doctor


def test_the_doctor_finds_nothing_wrong_with_a_journal_in_use(url: str, cli: Start) -> None:
    accept(url, "quick", 3)
    code, out, err = ended(cli("doctor", "--at", url))
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].endswith("invariants hold.")


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("DELETE FROM perdure_events WHERE n = 1", "the events of a run have a gap"),
        ("UPDATE perdure_runs SET due_at = NULL", "will never be claimed"),
        ("UPDATE perdure_runs SET state = 'done'", "a run ended, but is still due"),
        ("UPDATE perdure_runs SET state = 'waiting', due_at = NULL", "has no open wait"),
    ],
    ids=["gap", "forgotten", "ended", "waits"],
)
def test_the_doctor_names_what_is_wrong_with_exit_code_1(
    url: str, cli: Start, damage: str, problem: str
) -> None:
    [run] = accept(url, "quick")
    execute(url, damage)
    code, out, _ = ended(cli("doctor", "--at", url))
    assert code == 1
    assert problem in out
    assert run.id in out
    assert run.thread_id in out
