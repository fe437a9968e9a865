"""A reflection survives the signals that end its process."""

from __future__ import annotations

import signal

import pytest

from tests.langmem.faults import SIGNALS, Playing, is_hit, later
from tests.langmem.faults import playing as playing
from tests.langmem.faults import store as store
from tests.langmem.stock_child import FACTS
from tests.support.memory import manager, opened_store, remembered
from tests.support.polling import until


@pytest.mark.slow
@SIGNALS
def test_a_signal_loses_nothing(number: signal.Signals, url: str, playing: Playing) -> None:
    is_hit(number, playing("pends", "ours", url))
    with opened_store(url) as store, later(url, manager(), store):
        until(lambda: remembered(store, "ana") == FACTS, "all five being remembered")
