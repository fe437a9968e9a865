"""The engine of a runtime: its graphs, its lease keeper, its workers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from langgraph.store.base import BaseStore

from perdure.commands import starting
from perdure.commands.runs import RunRow
from perdure.commands.starting import Parent
from perdure.commands.webhooks import Private
from perdure.errors import BadArgument, Closed
from perdure.execution.drive import Driver
from perdure.execution.duties import RetentionSweep, StreamSweep, Sweep, ThreadExpiry, fire_now
from perdure.execution.graphs import Graph
from perdure.execution.lease import LeaseKeeper
from perdure.execution.resuming import resume_run
from perdure.execution.worker import Worker
from perdure.journal import Blocking, Plan
from perdure.journal.names import check_text
from perdure.journal_store import JournalStore
from perdure.langgraph_port import ecosystem
from perdure.observe.observers import Observers
from perdure.saver import Saver
from perdure.types import Control, Counts, DrivenBy, Retention, State


class Engine(Driver):
    """What drives runs in this process. It opens nothing before its first use."""

    def __init__(
        self,
        url: str | None,
        saver: Saver,
        lease: float,
        observers: Observers,
        retention: Retention | None = None,
        stream_ttl: timedelta = timedelta(days=1),
    ) -> None:
        super().__init__(url, saver, observers)
        self._lease, self.retention = lease, retention
        self._sweeps: list[Sweep] = [ThreadExpiry(), StreamSweep(stream_ttl)]
        if retention is not None:
            self._sweeps.append(RetentionSweep(retention))
        self.store: BaseStore | None = None
        """The store of graphs that have none of their own."""
        self.expected: set[str] = set()
        """Graphs that are registered later: until then runs of them are accepted, none driven."""
        self._workers: set[Worker] = set()
        self._keeper: LeaseKeeper | None = None

    continue_run = resume_run
    fire_schedule = fire_now

    @property
    def is_open(self) -> bool:
        return self.saver.is_open

    @property
    def keeper(self) -> LeaseKeeper:
        """What keeps the leases of this process. Not before the first use: it opens the journal."""
        keeper = self._keeper
        if keeper is None or keeper.pid != os.getpid():
            with self._opening:
                keeper = self._keeper
                if keeper is None or keeper.pid != os.getpid():
                    keeper = self._keeper = LeaseKeeper(self, lease=self._lease)
        return keeper

    def is_dead(self, worker: str) -> bool:
        return self.keeper.process_lock.is_dead(worker)

    def start_keeper(self) -> Plan[LeaseKeeper]:
        """The lease keeper at work. Others can see that this process lives before it claims."""
        if self._keeper is None or not self._keeper.is_started:
            yield Blocking(lambda: self.keeper.start())
        return self.keeper

    def resolve_graph(self, name: str, version: str | None) -> tuple[str, str]:
        checked = super().resolve_graph(name, version)
        # Without graphs it is a process that only starts runs, for workers elsewhere.
        if (name in self.expected and not version) or not self.graphs:
            return checked
        return self.graphs.resolve(name, version)

    @property
    def private_webhooks(self) -> Private:
        return self.outbox.run_webhooks.allow_private

    @property
    def graph_names(self) -> list[str]:
        return sorted({*self.graphs.names, *self.expected})

    def accept_inline(
        self,
        graph: Graph,
        thread_id: str,
        setup: dict[str, Any],
        strategy: str = "interrupt",
        *,
        run_id: str | None = None,
        key: str | None = None,
        parent: Parent | None = None,
    ) -> Plan[RunRow]:
        """Accept a run that its caller drives; a worker does only once the caller has begun it."""
        return starting.accept(
            self,
            (graph.name, graph.version),
            check_text("thread_id", thread_id),
            setup,
            strategy,
            reserve=self._lease,
            only=State.WAITING.value,
            run_id=run_id,
            key=key,
            parent=parent,
        )

    def find_store(self) -> tuple[BaseStore | None, asyncio.AbstractEventLoop | None]:
        """The store of this runtime, or the only one that its graphs were compiled with; and the
        event loop that it is bound to."""
        store = self.store
        if store is None:
            own = {id(one.pregel.store): one.pregel.store for one in self.graphs.newest.values()}
            stores = [one for one in own.values() if one is not None]
            store = stores[0] if len(stores) == 1 else None
        return store, ecosystem.store_loop(store)

    @property
    def is_driving(self) -> bool:
        """Whether a worker runs in this process."""
        return bool(self._workers)

    async def drive(
        self,
        *,
        handle_signals: bool,
        stop: asyncio.Event | None = None,
        graphs: Iterable[str] | None = None,
        **limits: Any,
    ) -> Counts:
        """Drive due runs of these graphs, all by default, until `stop` is set. `limits` are those
        of `Worker`."""
        if self.expected:
            raise BadArgument(
                f"{', '.join(sorted(self.expected))}: made by a coroutine. Open this runtime "
                "with `async with` before it drives."
            )
        if not (self.graphs or self.outbox.is_used):
            raise BadArgument("This runtime has no graph to drive: call register() first.")
        if limits["concurrency"] < 1:
            raise BadArgument("concurrency must be at least 1.")
        self._check_open()
        keeper = await asyncio.to_thread(lambda: self.keeper)
        if graphs is None:
            limits["sweeps"] = self._sweeps
        else:
            graphs = {self.resolve_graph(name, None)[0] for name in graphs}
        self.observers.call("nudge")  # other processes may have left something to export
        worker = Worker(self, keeper, self.graphs.chosen(graphs), **limits)
        self._workers.add(worker)
        try:
            self._check_open()  # again: from here on `close` waits for it
            return await worker.run(handle_signals=handle_signals, stop=stop)
        finally:
            self._workers.discard(worker)
            worker.ended.set()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("This runtime is closed. Open it again with setup() or a `with` block.")

    def wake(self, *, stopped: bool = False) -> None:
        if stopped and self._keeper is not None:
            self._keeper.nudge()
        for worker in list(self._workers):
            worker.wake()

    def stop(self, run_id: str, control: Control) -> None:
        if self._keeper is not None:
            self._keeper.stop(run_id, control)

    def forget(self, thread_id: str) -> None:
        self.saver.cache.forget(thread_id)

    def state_at(self, thread_id: str, checkpoint_id: str) -> Plan[Mapping[str, Any] | None]:
        return self.saver.reader.state_at(thread_id, checkpoint_id)

    def drain_ticks(self) -> None:
        for worker in list(self._workers):
            if worker.driven_by is DrivenBy.CRON:
                worker.drain()

    def _setup_journal(self) -> None:
        self.saver.setup()

    def close(self) -> None:
        self._closed = True
        if self._keeper is not None:
            if self._keeper.pid == os.getpid():  # those of a forked process are its parent's
                for worker in list(self._workers):
                    worker.end()  # while its leases are kept
            self._keeper.close()
            self._keeper = None
        self.observers.call("close")
        self.saver.close()
        if isinstance(self.store, JournalStore):
            self.store.close()
