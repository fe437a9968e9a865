"""Values that a database or a graph cannot accept are the caller's fault: never a 500."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from perdure.runtime import Runtime
from tests.support.agent_server import AgentServer, served
from tests.support.wire_graphs import SERVED, with_graphs

ODD: list[Any] = [
    *("\0", "\ud800", "", "..", "x" * 3000, 2**70, -1, 1e308, True, [], {}, [[]], ["\0"]),
    *({"\0": 1}, {"graph_id": "\0"}, {"assistant_id": "\ud800"}, {"configurable": 5}),
    *(
        {"checkpoint_id": 5},
        {"n": {"$odd": 1}},
        {"tags": 5},
        {"configurable": {"checkpoint_id": 5}},
    ),
    {"x": f"values.log[{'1' * 5000}]"},
    [{"updates": [{"values": {"log": 5}, "as_node": "add"}]}],
]
RUN = {
    "assistant_id": "numbers",
    "input": {"n": 1},
    "config": None,
    "context": None,
    "metadata": None,
    "checkpoint": None,
    "checkpoint_id": None,
    "command": None,
    "after_seconds": None,
}
CRON = {
    "assistant_id": "numbers",
    "schedule": "0 0 1 1 *",
    "timezone": None,
    "end_time": None,
    "input": None,
    "config": None,
}
IN_PATHS = ("%00", "a%00b", "%ff", "..", "-1", "9" * 30, "x" * 3000, "%F0%9F%98%80")
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/assistants"): {
        "graph_id": "numbers",
        "config": {},
        "context": {},
        "metadata": {},
        "name": None,
        "assistant_id": None,
        "if_exists": None,
        "description": None,
    },
    ("PATCH", "/assistants/numbers"): {
        "graph_id": "numbers",
        "config": {},
        "context": {},
        "metadata": {},
        "name": None,
    },
    ("POST", "/assistants/search"): {
        "limit": 1,
        "offset": 0,
        "graph_id": None,
        "name": None,
        "metadata": None,
        "sort_by": None,
        "sort_order": None,
        "select": None,
    },
    ("POST", "/assistants/count"): {"graph_id": None, "name": None, "metadata": None},
    ("POST", "/threads"): {
        "thread_id": None,
        "metadata": {"graph_id": "numbers"},
        "if_exists": None,
        "ttl": None,
        "supersteps": None,
    },
    ("PATCH", "/threads/{}"): {"metadata": {}, "ttl": None},
    ("POST", "/threads/search"): {
        "limit": 1,
        "offset": 0,
        "metadata": None,
        "values": None,
        "ids": None,
        "status": None,
        "sort_by": None,
        "sort_order": None,
        "select": None,
        "extract": None,
    },
    ("POST", "/threads/count"): {"metadata": None, "values": None, "ids": None, "status": None},
    ("POST", "/threads/prune"): {"thread_ids": [], "strategy": "keep_latest"},
    ("POST", "/threads/{}/state"): {
        "values": {"n": 1},
        "as_node": "add",
        "checkpoint": None,
        "checkpoint_id": None,
    },
    ("POST", "/threads/{}/state/checkpoint"): {"checkpoint": {}, "subgraphs": True, "select": None},
    ("POST", "/threads/{}/history"): {
        "limit": 2,
        "before": None,
        "metadata": None,
        "checkpoint": None,
        "select": None,
    },
    ("POST", "/threads/{}/runs"): {**RUN, "multitask_strategy": "rollback"},
    ("POST", "/runs"): {**RUN, "on_completion": None},
    ("POST", "/runs/crons"): {**CRON, "metadata": None, "context": None},
    ("PATCH", "/runs/crons/{cron}"): {**CRON, "multitask_strategy": None, "webhook": None},
    ("POST", "/runs/cancel"): {"thread_id": None, "run_ids": None, "status": None},
    ("POST", "/threads/{}/commands"): {"id": 1, "method": "run.start", "params": None},
    ("POST", "/perdure/runs/{run}/fork"): {
        "at": None,
        "update": None,
        "as_node": None,
        "thread_id": None,
    },
    ("PUT", "/perdure/schedules/odd"): {
        "graph": "numbers",
        "cron": "0 0 1 1 *",
        "timezone": "UTC",
        "input": None,
        "metadata": None,
        "context": None,
        "config": None,
    },
    ("PUT", "/store/items"): {
        "namespace": ["a"],
        "key": "k",
        "value": {},
        "index": None,
        "ttl": None,
    },
    ("DELETE", "/store/items"): {"namespace": ["a"], "key": "k"},
    ("POST", "/store/items/search"): {
        "namespace_prefix": ["a"],
        "filter": None,
        "limit": 1,
        "offset": 0,
        "query": None,
    },
    ("POST", "/store/namespaces"): {
        "prefix": None,
        "suffix": None,
        "max_depth": None,
        "limit": 1,
        "offset": 0,
    },
}
PATHS = (
    *("/assistants/{}", "/assistants/{}/graph", "/assistants/{}/schemas"),
    *("/assistants/numbers/subgraphs/{}", "/assistants/numbers/graph?xray={}", "/threads/{}"),
    *("/threads/{}/state", "/threads/{}/history", "/store/items?namespace={}&key=k"),
    "/store/items?namespace=a&key={}",
)


@pytest.fixture
def server(request: pytest.FixtureRequest, database: str) -> Iterator[AgentServer]:
    rt = with_graphs(Runtime(request.getfixturevalue(f"{database}_url"), store=True))
    with served(rt) as found:
        yield found


@SERVED
def test_unusual_values_get_a_clear_error_message(server: AgentServer) -> None:
    client, http = server.sync_client(), server.http()
    thread = client.threads.create(graph_id="numbers")["thread_id"]
    client.threads.update_state(thread, {"n": 1}, as_node="add")
    run = client.runs.create(thread, "numbers", input={"n": 1})["run_id"]
    client.runs.join(thread, run)
    made: Any = client.crons.create("numbers", schedule="0 0 1 1 *")
    cron = made["cron_id"]
    failed = []

    def ask(method: str, path: str, body: Any = None) -> None:
        text = None if body is None else json.dumps(body)
        answer = http.request(
            method, path, content=text, headers={"content-type": "application/json"}
        )
        code = answer.status_code
        if code >= 500 and code != 501:
            failed.append((method, path, text, answer.text))
        elif code >= 400:
            assert isinstance(answer.json()["detail"], str)

    for (method, path), body in BODIES.items():
        for name in body:
            for odd in ODD:
                ask(method, path.format(thread, run=run, cron=cron), {**body, name: odd})
    for path in (*PATHS, f"/threads/{thread}/state/{{}}", f"/threads/{thread}/history?before={{}}"):
        for text in IN_PATHS:
            ask("GET", path.format(text))
    assert failed == []
