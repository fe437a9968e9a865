"""Which pages are shown: the name of the file, and the address, which may need an id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlencode

import perdure
from perdure.types import State


@dataclass(frozen=True)
class Shot:
    """One page."""

    name: str
    path: str | Callable[[perdure.Runtime], str]
    full: bool = False
    """Whether the picture shows the whole page, not only what fits on the screen."""

    def address(self, rt: perdure.Runtime) -> str:
        return self.path if isinstance(self.path, str) else self.path(rt)


def question(thread: str) -> Callable[[perdure.Runtime], str]:
    """The open question of a thread whose id begins so."""

    def find(rt: perdure.Runtime) -> str:
        waits = rt.blocking.waits(kind="human", limit=100)
        return f"/questions/{next(one.id for one in waits if one.thread_id.startswith(thread))}"

    return find


def busiest(rt: perdure.Runtime) -> str:
    """The run of the campaign whose life has the most crashes."""
    runs = rt.blocking.runs(graph="campaign", limit=100, output=False)
    return max(runs, key=lambda run: len(rt.blocking.saved(run.id).recoveries or ())).id


def failed(rt: perdure.Runtime) -> str:
    [run] = rt.blocking.runs(state=State.FAILED, limit=1, output=False)
    return run.id


def held(rt: perdure.Runtime) -> str:
    [run] = rt.blocking.runs(state=State.HELD, graph="payments", limit=1, output=False)
    return run.id


def unknown_effect(rt: perdure.Runtime) -> str:
    [effect] = rt.blocking.effects(state="unknown", limit=1)
    return "/effects/one?" + urlencode({"key": effect.key})


SHOTS: tuple[Shot, ...] = (
    Shot("sign-in", "/sign-in"),
    Shot("inbox", "/inbox"),
    Shot("question-tools", question("support")),
    Shot("question-draft", question("campaign")),
    Shot("question-form", question("invoice")),
    Shot("runs", "/runs"),
    Shot("run", lambda rt: f"/runs/{busiest(rt)}"),
    Shot("run-whole", lambda rt: f"/runs/{busiest(rt)}", full=True),
    Shot("run-failed", lambda rt: f"/runs/{failed(rt)}"),
    Shot("run-state", lambda rt: f"/runs/{busiest(rt)}?tab=state"),
    Shot("fork", lambda rt: f"/runs/{busiest(rt)}/fork"),
    Shot("held", lambda rt: f"/held/{held(rt)}"),
    Shot("effects", "/effects"),
    Shot("effect", unknown_effect),
    Shot("outbox", "/outbox"),
    Shot("schedules", "/schedules"),
    Shot("schedule", "/schedules/one?name=weekly+stock+count"),
    Shot("reflections", "/reflections"),
    Shot("health", "/health"),
    Shot("code-changes", "/code-changes"),
    Shot("prompts", "/prompts"),
    Shot("prompt", "/prompts/one?name=shipping+reply"),
    Shot("experiments", "/experiments"),
    Shot("experiment", "/experiments/show?name=shipping+formal&name=shipping+short"),
    Shot("scores", "/scores"),
    Shot("saved", "/saved"),
    Shot("saved-run", lambda rt: f"/saved/run?id={busiest(rt)}"),
)
