"""The services of one client: they share a serializer, a clock and an engine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from perdure.journal.clock import Clock
from perdure.serde.serializer import Serializer
from perdure.service.effects import EffectService
from perdure.service.local_engine import LocalEngine
from perdure.service.messages import MessageService
from perdure.service.runs import RunService
from perdure.service.schedules import ScheduleService
from perdure.service.waits import WaitService


@dataclass(frozen=True)
class Services:
    """Plans by what they are about. Run them with the client's `journal`."""

    engine: LocalEngine
    clock: Clock

    @property
    def serializer(self) -> Serializer:
        return self.engine.serializer

    @cached_property
    def runs(self) -> RunService:
        return RunService(self.serializer, self.clock, self.engine.state_at, self.engine.forget)

    @cached_property
    def waits(self) -> WaitService:
        return WaitService(self.serializer, self.clock)

    @cached_property
    def effects(self) -> EffectService:
        return EffectService(self.serializer, self.clock)

    @cached_property
    def messages(self) -> MessageService:
        return MessageService(self.serializer)

    @cached_property
    def schedules(self) -> ScheduleService:
        return ScheduleService(self.serializer, self.clock, self.runs)
