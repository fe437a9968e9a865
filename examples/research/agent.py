"""The agent: it plans, reads forty pages, summarises each, and writes a report.

    plan ──▶ read (a branch for each step of the plan) ──▶ write ──▶ publish

Every call that leaves the process is an effect: the GET of a page, each model call, the final
file. So whenever its process is killed, the next one goes on and repeats no recorded call.

The plan is kept with a hash. Its steps are ticked off as they settle (`ticks`). If the plan is
changed behind the agent's back, the run stops before anything is done for it (`approved_plan`).
"""

import asyncio
import hashlib
import json
import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.types import Send, StateSnapshot
from typing_extensions import TypedDict  # Pydantic reads it, also on Python 3.11

import perdure
from examples.research import model
from examples.research.model import ScriptedModel
from perdure.errors import BadArgument
from perdure.langchain import Durable

# -- the plan


class Step(TypedDict):
    """A page to read, and the chapter it is for."""

    id: str
    chapter: str
    url: str


class Plan(TypedDict):
    """What is to be read."""

    steps: list[Step]


class Research(TypedDict, total=False):
    """All the agent knows."""

    question: str
    folder: str
    plan: list[Step]
    approved: str
    """The hash of the plan that was approved."""
    findings: Annotated[dict[str, str], operator.or_]
    """By step: what was found. A step that is in here is ticked off."""
    text: str
    report: str
    """Where the report is."""


class PlanChanged(BadArgument):
    """The plan is not the one that was approved. The run fails at once: no retry would help."""


def approve(steps: list[Step]) -> Research:
    """A plan, sealed with its hash."""
    return {"plan": steps, "approved": _hash(steps)}


def approved_plan(state: Research) -> list[Step]:
    """The plan, if it is still the one that was approved."""
    found = _hash(state["plan"])
    if found != state["approved"]:
        raise PlanChanged(
            f"The plan was changed after it was approved: its hash is {found[:12]}, approved was "
            f"{state['approved'][:12]}. Nothing more was done. Fork the run from an earlier "
            "checkpoint, or approve the new plan: fork(run_id, update=approve(steps))."
        )
    return state["plan"]


def _hash(steps: list[Step]) -> str:
    text = json.dumps(steps, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def ticks(snapshot: StateSnapshot) -> dict[str, bool]:
    """Each step of the plan, and whether it is settled. Also in the middle of the fan-out: what
    the branches that have ended brought is on disk already."""
    settled = set(snapshot.values.get("findings") or ())
    for task in snapshot.tasks:
        if isinstance(task.result, Mapping):
            settled |= set(task.result.get("findings") or ())
    return {step["id"]: step["id"] in settled for step in snapshot.values.get("plan") or ()}


# -- what leaves the process


@perdure.effect(timeout=30)
async def fetch(url: str) -> str:
    """GET a page. A second request does no harm, so a request that was cut off is made again, with
    the same key: the site can recognise it."""
    return await asyncio.to_thread(_get, url, {"Idempotency-Key": perdure.key()})


def _get(url: str, headers: Mapping[str, str]) -> str:
    with urlopen(Request(url, headers=dict(headers))) as answer:  # noqa: S310 (http, from the plan)
        text: str = answer.read().decode()
    return text


def _report_path(folder: str) -> Path:
    return Path(folder) / f"report-{perdure.key()[:8]}.md"


def _is_written(folder: str, text: str) -> str | None:
    path = _report_path(folder)
    return str(path) if path.exists() else None


@perdure.effect(verify=_is_written)
def save(folder: str, text: str) -> str:
    """Write the report: whole or not at all, and under the same name in every attempt, so that any
    process can see whether it is written."""
    path = _report_path(folder)
    with path.with_suffix(".draft").open("w") as draft:
        draft.write(text)
        draft.flush()
        os.fsync(draft.fileno())
    os.replace(draft.name, path)
    return str(path)


# -- the graph


def build(site: str, bill: str, seconds: float = 0.0) -> StateGraph[Research]:
    """The agent for a website. `bill` and `seconds` are for the scripted model."""

    @tool
    async def search(word: str) -> str:
        """Pages whose title has a word."""
        return await asyncio.to_thread(_get, f"{site}/search?{urlencode({'q': word})}", {})

    def agent(script: model.Script, prompt: str, **options: Any) -> Any:
        scripted = ScriptedModel(script=script, bill=bill, seconds=seconds)
        durable = Durable(tools={"search": "read"})  # model calls are effects; a search only reads
        return create_agent(scripted, system_prompt=prompt, middleware=[durable], **options)

    planner = agent(
        model.plans,
        "Search for pages that answer the question, then hand in a plan.",
        tools=[search],
        response_format=ToolStrategy(Plan),
    )
    # All they do is recorded as effects of the node they are in: checkpoints would add nothing.
    reader = agent(model.summarises, "Summarise the page in one sentence.", checkpointer=False)
    writer = agent(model.writes, "Write a chapter about these findings.", checkpointer=False)

    async def plan(state: Research) -> Research:
        answer = await planner.ainvoke({"messages": [HumanMessage(state["question"])]})
        return approve(answer["structured_response"]["steps"])

    def each_step(state: Research) -> list[Send]:
        return [Send("read", step) for step in approved_plan(state)]

    async def read(state: Step) -> Research:
        page = await fetch(state["url"])
        return {"findings": {state["id"]: await ask(reader, page)}}

    async def write(state: Research) -> Research:
        steps, findings = approved_plan(state), state["findings"]
        chapters: dict[str, list[str]] = {}
        for step in steps:
            chapters.setdefault(step["chapter"], []).append(findings[step["id"]])
        text = f"# {state['question']}\n"
        for title, notes in chapters.items():
            chapter = await ask(writer, "\n".join(notes))
            text += f"\n## {title}\n\n{chapter}\n\n" + "".join(f"- {note}\n" for note in notes)
        return {"text": text}

    def publish(state: Research) -> Research:
        approved_plan(state)
        return {"report": save(state["folder"], state["text"])}

    builder = StateGraph(Research)
    builder.add_node("plan", plan)
    builder.add_node("read", read, input_schema=Step)
    builder.add_node("write", write)
    builder.add_node("publish", publish)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", each_step, ["read"])
    builder.add_edge("read", "write")
    builder.add_edge("write", "publish")
    return builder


async def ask(agent: Any, text: str) -> str:
    """What an agent answers."""
    answer = await agent.ainvoke({"messages": [HumanMessage(text)]})
    return str(answer["messages"][-1].text)
