"""What a graph's own code refuses is shown as it is stored: no request fails over it, and no list.

A reducer that raised in a run raises again wherever LangGraph computes the thread's state. It
stays the run's error: the run failed, and says why.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.types import Retry
from tests.support.agent_server import AgentServer, served


class Sum(TypedDict, total=False):
    total: Annotated[int, operator.add]


def say(state: MessagesState) -> dict[str, Any]:
    return {"messages": [{"role": "ai", "content": "hello"}]}


def add(state: Sum) -> Any:
    return {"total": "no number"}


def row(schema: Any, node: Any) -> Any:
    builder = StateGraph(schema)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    return builder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentServer]:
    runtime = perdure.Runtime(f"sqlite:///{tmp_path_factory.mktemp('odd') / 'agents.db'}")
    for name, graph in (
        ("chat", row(MessagesState, say)),
        ("sum", row(Sum, add)),
        ("family", row(Sum, row(Sum, add).compile())),
    ):
        runtime.register(graph, name=name, retry=Retry(attempts=1))
    user = {"name": "ana", "scopes": ["admin"]}
    with closing(runtime), served(runtime, ui=True, ui_user=lambda _: user) as running:
        yield running


@pytest.fixture(scope="module")
def http(server: AgentServer) -> httpx.Client:
    return server.http()


def run(http: httpx.Client, graph: str, input: Any) -> tuple[str, Any]:
    """A thread with a run of this input, and what the run returned."""
    thread = str(uuid4())
    body = {"assistant_id": graph, "input": input, "if_not_exists": "create"}
    done = http.post(f"/threads/{thread}/runs/wait", json=body)
    assert done.status_code == 200, done.text
    return thread, done.json()


def check_every_view(http: httpx.Client, thread: str) -> None:
    """Every route and page that shows a thread, its state or its run works."""
    on = f"/threads/{thread}"
    [found] = http.get(f"{on}/runs").json()
    id = found["run_id"]
    chosen = {"ids": [thread]}
    requests: list[tuple[str, str, Any]] = [
        *[("GET", f"{on}{part}", None) for part in ("", "/state", "/state?subgraphs=true")],
        *[("GET", f"{on}{part}", None) for part in ("/history", f"/runs/{id}", f"/runs/{id}/join")],
        ("GET", f"/perdure/runs/{id}", None),
        ("GET", f"/perdure/runs/{id}/events", None),
        ("POST", f"{on}/history", {}),
        ("POST", f"{on}/state/checkpoint", {"checkpoint": {}, "subgraphs": True}),
        ("POST", "/threads/search", {**chosen, "extract": {"last": "values.messages[-1]"}}),
        ("POST", "/threads/search", {**chosen, "values": {"a": 1}}),
        ("POST", "/threads/count", {**chosen, "values": {"a": 1}}),
        ("GET", f"/ui/runs/{id}", None),
        *[("GET", f"/ui{page}", None) for page in ("/threads", "/runs")],
    ]
    for method, path, body in requests:
        answer = http.request(method, path, json=body)
        assert answer.status_code == 200, (method, path, answer.text[:200])
    copied = http.post(f"{on}/copy")
    assert copied.status_code == 200
    assert http.get(f"/threads/{copied.json()['thread_id']}/state").status_code == 200
    assert http.delete(f"/threads/{copied.json()['thread_id']}").status_code == 204


ODD: list[tuple[str, Any]] = [
    ("chat", {"messages": [{"text": "hello"}]}),
    ("chat", {"messages": [5, None, [], {}]}),
    ("chat", {"messages": [{"role": "ai", "content": "x", "tool_calls": [{"odd": 1}]}]}),
    ("sum", {"total": 1}),
    ("family", {"total": 1}),
]


@pytest.mark.parametrize(("graph", "input"), ODD, ids=str)
def test_a_thread_whose_reducer_raises_is_shown_with_its_error(
    http: httpx.Client, graph: str, input: Any
) -> None:
    thread, returned = run(http, graph, input)
    assert returned["__error__"]["message"]
    check_every_view(http, thread)
    shown = http.get(f"/threads/{thread}").json()
    assert shown["status"] == "error"
    assert shown["error"] == returned["__error__"]
    assert http.get(f"/threads/{thread}/runs").json()[0]["kwargs"]["input"] == input
    assert http.get(f"/threads/{thread}/state").json()["next"]


def test_a_list_shows_the_threads_beside_an_odd_one(http: httpx.Client) -> None:
    ids = [run(http, "chat", {"messages": messages})[0] for messages in ("a", [{"b": 1}], "c")]
    found = http.post("/threads/search", json={"ids": ids, "sort_order": "asc"}).json()
    assert [one["thread_id"] for one in found] == ids
    assert [one["status"] for one in found] == ["idle", "error", "idle"]
    assert [one["content"] for one in found[2]["values"]["messages"]] == ["c", "hello"]


Json = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "type", "content", "id", "tool_calls", "text"]), inner
        )
    ),
    max_leaves=6,
)


@settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(Json)
def test_any_json_may_be_where_messages_are_expected(http: httpx.Client, messages: Any) -> None:
    thread, _ = run(http, "chat", {"messages": messages})
    check_every_view(http, thread)
