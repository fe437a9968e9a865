"""LangGraph's own conformance suite passes, every test of every capability, on both databases.

The suite only calls the coroutines of a saver. It is run a second time through `Blocking`, whose
coroutines call the blocking methods, so that these are held to the same promises.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability

import perdure


class Blocking(BaseCheckpointSaver[int]):
    """A saver whose coroutines call the blocking methods of another."""

    def __init__(self, inner: perdure.Saver) -> None:
        super().__init__(serde=inner.serde)
        self.inner = inner

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.inner.get_tuple(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        for found in self.inner.list(config, filter=filter, before=before, limit=limit):
            yield found

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self.inner.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        self.inner.put_writes(config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        self.inner.delete_thread(thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        self.inner.delete_for_runs(run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.inner.copy_thread(source_thread_id, target_thread_id)

    async def aprune(
        self, thread_ids: Sequence[str], *, strategy: str = "keep_latest", **kwargs: Any
    ) -> None:
        self.inner.prune(thread_ids, strategy=strategy, **kwargs)

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self.inner.get_next_version(current, channel)


async def failures(saver: BaseCheckpointSaver[Any], capability: Capability) -> list[str]:
    """The tests of a capability that a saver does not pass; at least one must have run."""

    @checkpointer_test(name="perdure")
    async def given() -> AsyncGenerator[BaseCheckpointSaver[Any], None]:
        yield saver

    report = await validate(given, capabilities={capability.value})
    result = report.results[capability.value]
    assert result.detected
    assert result.tests_passed + result.tests_failed > 0
    return result.failures


@pytest.mark.parametrize("capability", list(Capability), ids=lambda one: str(one.value))
async def test_every_conformance_test_passes_through_the_blocking_methods(
    url: str, capability: Capability
) -> None:
    with perdure.Saver(url) as saver:
        assert await failures(Blocking(saver), capability) == []


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_every_conformance_test_passes_whatever_is_waited_for(
    sqlite_url: str, durability: Any
) -> None:
    async with perdure.Saver(sqlite_url, durability) as saver:
        assert [name for one in Capability for name in await failures(saver, one)] == []


async def test_every_conformance_test_passes_with_encryption(sqlite_url: str) -> None:
    async with perdure.Saver(sqlite_url, encryption_keys={"first": b"k" * 32}) as saver:
        assert [name for one in Capability for name in await failures(saver, one)] == []
