"""The services of one client: they share a serializer, a clock and an engine."""

from __future__ import annotations

from perdure.journal.clock import Clock
from perdure.service.assistants import AssistantService
from perdure.service.effects import EffectService
from perdure.service.inbox import InboxService
from perdure.service.local_engine import LocalEngine
from perdure.service.question_links import QuestionLinkService
from perdure.service.reflections import ReflectionService
from perdure.service.run_lines import RunLineService
from perdure.service.run_search import RunSearch
from perdure.service.runs import RunService
from perdure.service.schedules import ScheduleService
from perdure.service.scores import ScoreService
from perdure.service.threads import ThreadService
from perdure.service.tokens import TokenService
from perdure.service.waits import WaitService
from perdure.service.workers import WorkerService


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
