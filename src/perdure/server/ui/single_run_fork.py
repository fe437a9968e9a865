"""Forking a run from one of its steps, with an editable state.

The state is shown as JSON. Only changed channels are passed to the graph: they replace the old
values, whatever their reducer is. If the form is refused, it keeps what was typed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from fastapi import Response
from langchain_core.messages import BaseMessage, convert_to_messages
from langgraph.channels import BinaryOperatorAggregate
from langgraph.types import Overwrite
from pydantic import BaseModel

from perdure.commands.runs import RunRow
from perdure.errors import Error
from perdure.server.agent_api.thread_state import update_error
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError
from perdure.server.perdure_api.requests import find_row
from perdure.server.ui.page import Ui, UiDep, ui_router
from perdure.server.ui.run_states import StoredState, graph_of, state_at
from perdure.text import json_default
from perdure.views.run_offers import FORK

router = ui_router()

LARGEST = 400_000
"""Maximum length of a state that can be edited."""


@dataclass(frozen=True)
class Typed:
    """What a person typed, or the initial values of the form."""

    state: str
    as_node: str = ""
    problem: str = ""


@router.get("/runs/{run_id}/fork")
async def show(ui: UiDep, run_id: str, at: str = "") -> Response:
    ui.require(Scope.ADMIN)
    row = await find_row(ui.api, "run", run_id, "update")
    state = await _state(ui, row, at)
    return _page(ui, row, state, Typed(_as_text(state.values)))


@router.post("/runs/{run_id}/fork")
async def fork(ui: UiDep, run_id: str) -> Response:
    ui.require(Scope.ADMIN)
    row, form = await find_row(ui.api, "run", run_id, "update"), await ui.form()
    state = await _state(ui, row, form.get("at"))
    typed = Typed(form.get("state"), form.get("as_node"))
    graph = graph_of(ui.runtime, row.graph, row.version)
    try:
        update = _update(graph, state.values, typed.state)
        made = await ui.runtime.fork(
            run_id,
            at=form.get("at") or None,
            update=update or None,
            as_node=typed.as_node or None,
        )
    except Exception as error:
        return _refused(ui, row, state, typed, error)
    await ui.runtime.comment(run_id, f"Forked as run {made.id}.", by=ui.actor)
    await ui.runtime.comment(made.id, f"This is a fork of run {run_id}.", by=ui.actor)
    return ui.redirect(f"/runs/{made.id}", notice=f"This is a fork of run {run_id}.")


class NotThatState(ValueError):
    """The typed text is not a valid state. The message says why."""


def _refused(ui: Ui, row: RunRow, state: StoredState, typed: Typed, error: Exception) -> Response:
    """The form again, with what was typed and why it was refused."""
    if isinstance(error, Error | NotThatState):
        problem = str(error)
    elif isinstance(error, ApiError):
        problem = str(error.detail)
    else:
        problem = str(update_error(error).detail)
    page = _page(ui, row, state, Typed(typed.state, typed.as_node, ui.runtime.redact(problem)))
    page.status_code = 422
    return page


async def _state(ui: Ui, row: RunRow, at: str) -> StoredState:
    state = await state_at(ui.runtime, row.thread_id, checkpoint=at or None)
    if state.checkpoint is None:
        raise ApiError(404, state.problem or "This run has no such step.")
    return state


def _page(ui: Ui, row: RunRow, state: StoredState, typed: Typed) -> Response:
    graph = graph_of(ui.runtime, row.graph, row.version)
    nodes = [] if graph is None else graph.node_names
    return ui.page(
        "run_fork.html",
        title="Fork a run",
        section="runs",
        run_id=row.id,
        state=state,
        typed=typed,
        nodes=nodes,
        offer=FORK,
        is_too_large=len(typed.state) > LARGEST,
        is_known=graph is not None,
    )


def _as_text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, default=_readable, indent=2, skipkeys=True)


def _readable(value: Any) -> Any:
    """A message without its empty fields."""
    found = json_default(value)
    if not isinstance(value, BaseMessage):
        return found
    return {name: one for name, one in found.items() if one or name == "content"}


def _update(graph: Any, values: Mapping[str, Any], typed: str) -> dict[str, Any]:
    """The edits of a state, as an update that replaces channels. Raises `NotThatState`."""
    if not typed.strip():
        return {}
    try:
        given = json.loads(typed)
    except RecursionError:
        raise NotThatState("This JSON is nested too deeply.") from None
    except ValueError as error:
        raise NotThatState(f"This is not JSON: {error}.") from None
    if not isinstance(given, dict):
        raise NotThatState("The state must be an object with a key for each channel.")
    if gone := [name for name in values if name not in given]:
        raise NotThatState(f"Channels cannot be removed: {', '.join(gone)}. Set them to null.")
    known = {*values, *(graph.pregel.channels if graph is not None else given)}
    if odd := [name for name in given if name not in known]:
        raise NotThatState(f"The graph has no channel {', '.join(odd)}.")
    shown = json.loads(_as_text(values))
    changed = {name: one for name, one in given.items() if shown.get(name, ...) != one}
    return {name: _replacing(graph, name, values.get(name), one) for name, one in changed.items()}


def _replacing(graph: Any, name: str, old: Any, new: Any) -> Any:
    """A value that replaces the one of a channel, of the type that it had."""
    try:
        value = _typed_like(old, new)
    except Exception as error:  # a user's own type refuses it
        kind = type(error).__name__
        raise NotThatState(f"{name}: {kind}: {error!s:.300}") from None
    channel = None if graph is None else graph.pregel.channels.get(name)
    return Overwrite(value) if isinstance(channel, BinaryOperatorAggregate) else value


def _typed_like(old: Any, new: Any) -> Any:
    if isinstance(old, BaseModel) and not isinstance(old, BaseMessage) and isinstance(new, dict):
        return type(old).model_validate(new)
    if is_dataclass(old) and not isinstance(old, type) and isinstance(new, dict):
        known = {one.name for one in fields(old) if one.init}
        return type(old)(**{name: one for name, one in new.items() if name in known})
    if isinstance(old, list) and old and all(isinstance(one, BaseMessage) for one in old):
        if not isinstance(new, list):
            raise TypeError("messages must be a list")
        return convert_to_messages(new)
    return new
