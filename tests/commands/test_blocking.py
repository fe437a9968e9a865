"""`Runtime.blocking` is the runtime for callers without an event loop: the same methods, written
once, from any thread, and it can always be closed."""

from __future__ import annotations

import inspect
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

import perdure
from perdure.errors import Closed, NotFound, UnknownGraph
from perdure.runtime import BlockingRuntime, Runtime
from perdure.testing import TemporaryRuntime, runtime
from perdure.types import State
from tests.support.polling import until


class Form(TypedDict, total=False):
    n: int
    signed: Any


def builder() -> StateGraph[Form]:
    def sign(state: Form) -> Form:
        return {"signed": interrupt("sign?")}

    found = StateGraph(Form)
    found.add_sequence([("add", lambda state: {"n": state["n"] + 1}), ("sign", sign)])
    found.add_edge(START, "add")
    return found


@pytest.fixture
def rt() -> Iterator[TemporaryRuntime]:
    with runtime() as found:
        found.register(builder(), name="form")
        yield found


def methods(kind: type) -> dict[str, Any]:
    return {name: getattr(kind, name) for name in vars(kind) if not name.startswith("_")}


ASYNC = {name: one for name, one in methods(Runtime).items() if inspect.iscoroutinefunction(one)}


def test_every_public_coroutine_of_a_runtime_is_there_and_nothing_else() -> None:
    assert methods(BlockingRuntime).keys() - {"close"} == ASYNC.keys()


@pytest.mark.parametrize("name", list(ASYNC))
def test_a_method_takes_what_the_runtimes_own_takes(name: str) -> None:
    ours, theirs = getattr(BlockingRuntime, name), ASYNC[name]
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert ours.__doc__ == theirs.__doc__
    assert not inspect.iscoroutinefunction(ours)


def test_a_run_is_brought_to_its_end_without_a_loop(url: str) -> None:
    with runtime(url) as rt:
        rt.register(builder(), name="form")
        run = rt.blocking.start("form", {"n": 1}, thread_id="t", key="k", metadata={"a": 1})
        assert rt.blocking.start("form", {"n": 9}, thread_id="t", key="k").id == run.id
        assert rt.blocking.tick(limit=1).waiting == 1
        [wait] = rt.blocking.waits(kind="human")
        rt.blocking.answer(wait.id, True, by="ana")
        assert rt.blocking.work(until_idle=True).done == 1
        assert rt.blocking.get(run.id).output == {"n": 2, "signed": True}
        assert [one.id for one in rt.blocking.runs(state="done")] == [run.id]
        assert rt.blocking.events(run.id)[-1].kind == "done"
        forked = rt.blocking.fork(run.id, thread_id="other")
        assert rt.blocking.cancel(forked.id).state is State.CANCELLED
        assert rt.blocking.signal("t", "hello", key="m1") is True
        assert rt.blocking.signal("t", "hello", key="m1") is False
        rt.clock.advance(timedelta(days=1))
        assert rt.blocking.prune(older_than=timedelta(hours=1)) == 2


def test_an_error_is_the_runtimes_own(rt: TemporaryRuntime) -> None:
    with pytest.raises(NotFound, match="no run 'nobody'"):
        rt.blocking.get("nobody")
    with pytest.raises(UnknownGraph):
        rt.blocking.start("from", {"n": 1})


def test_many_threads_use_it_at_once(url: str) -> None:
    with runtime(url) as rt:
        rt.register(builder(), name="form")

        def start(n: int) -> str:
            return rt.blocking.start("form", {"n": n}, thread_id=f"t{n}").id

        with ThreadPoolExecutor(8) as pool:
            ids = list(pool.map(start, range(24)))
            counts = list(pool.map(lambda _: rt.blocking.tick(limit=10), range(4)))
        assert len(set(ids)) == 24
        assert sum(one.claimed for one in counts) == sum(one.waiting for one in counts) == 24
        assert {one.value for one in rt.blocking.waits()} == {"sign?"}


def test_it_is_one_and_the_same_for_all_threads() -> None:
    for _ in range(20):
        with runtime() as rt:
            ready = threading.Barrier(8)

            def take(rt: Any = rt, ready: Any = ready) -> Any:
                ready.wait(30)
                return rt.blocking

            with ThreadPoolExecutor(8) as pool:
                found = [one.result() for one in [pool.submit(take) for _ in range(8)]]
            assert len({id(one) for one in found}) == 1


def test_a_closed_runtime_has_no_thread_of_it_left(rt: TemporaryRuntime) -> None:
    before = set(threading.enumerate())
    rt.blocking.start("form", {"n": 1})
    made = set(threading.enumerate()) - before
    assert "perdure-blocking" in {thread.name for thread in made}
    rt.close()
    # They are told to end, and not waited for. Who is not told looks after five seconds.
    until(lambda: made.isdisjoint(threading.enumerate()), "the end of its threads", seconds=4)
    with pytest.raises(Closed):
        rt.blocking.start("form", {"n": 1})


SCRIPT = """
import sys, time
from pathlib import Path
from typing import TypedDict
import perdure
from langgraph.graph import START, StateGraph

class Form(TypedDict, total=False):
    n: int

def slow(state):
    Path("entered").touch()
    time.sleep(600)

builder = StateGraph(Form)
builder.add_node("slow", slow)
builder.add_edge(START, "slow")
try:
    with perdure.Runtime(sys.argv[1]) as rt:
        rt.register(builder, name="slow")
        rt.blocking.start("slow", {"n": 1}, thread_id="t")
        rt.blocking.CALL
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "call", ["tick(grace=timedelta(0))", "work(grace=timedelta(0))"], ids=["tick", "work"]
)
def test_control_c_in_the_middle_of_a_call_closes_and_gives_the_run_back(
    url: str, tmp_path: Path, call: str
) -> None:
    code = "from datetime import timedelta" + SCRIPT.replace("CALL", call)
    child = subprocess.Popen(
        [sys.executable, "-c", code, url], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "entered").exists():
            assert time.monotonic() < deadline
            assert child.poll() is None
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        told, _ = child.communicate(timeout=30)
        assert (told.strip(), child.returncode) == ("interrupted", 0)
        with perdure.Runtime(url) as rt:
            [run] = rt.blocking.runs()
            assert run.state is State.PENDING
            assert rt.blocking.events(run.id)[-1].kind == "released"
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
