"""The services of one client: they share a serializer, a clock and an engine."""

from __future__ import annotations

from perdure.commands.answering import WaitService
from perdure.commands.assistants import AssistantService
from perdure.commands.inbox import InboxService
from perdure.commands.local_engine import LocalEngine
from perdure.commands.question_links import QuestionLinkService
from perdure.commands.reflections import ReflectionService
from perdure.commands.run_search import RunLineService, RunSearch
from perdure.commands.run_service import RunService
from perdure.commands.schedules import ScheduleService
from perdure.commands.scores import ScoreService
from perdure.commands.settling import EffectService
from perdure.commands.threads import ThreadService
from perdure.commands.tokens import TokenService
from perdure.commands.workers import WorkerService
from perdure.journal.clock import Clock


class Services:
    """Plans by what they are about. Run them with the client's `journal`."""

    def __init__(self, engine: LocalEngine, clock: Clock) -> None:
        serializer, self.clock = engine.serializer, clock
        self.runs = RunService(engine, clock)
        self.run_lines = RunLineService(serializer)
        self.run_search = RunSearch(serializer)
        self.waits = WaitService(serializer, clock)
        self.links = QuestionLinkService(serializer, clock, self.waits)
        self.inbox = InboxService(serializer, self.runs)
        self.effects = EffectService(serializer, clock)
        self.scores = ScoreService(serializer, clock)
        self.schedules = ScheduleService(serializer, clock)
        self.reflections = ReflectionService(serializer, clock)
        self.tokens = TokenService(clock)
        self.assistants = AssistantService(serializer, clock, lambda: engine.graph_names)
        self.threads = ThreadService(serializer, clock)
        self.workers = WorkerService(engine, clock)
