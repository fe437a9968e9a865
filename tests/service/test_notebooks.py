"""What notebooks show of a run, a timeline and an inbox: self-contained, and escaped."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

import perdure
from perdure.errors import BadArgument
from perdure.service.views.inbox_value import Inbox
from perdure.service.views.run_life import Timeline
from perdure.testing import runtime
from tests.support.agents import chain

HOSTILE = "</style></td><script>alert(1)</script>"


def ask(state: Any) -> dict[str, Any]:
    return {"log": [str(perdure.ask({"question": HOSTILE}))]}


def check(html: str) -> ET.Element:
    """It is well-formed, loads nothing and runs nothing."""
    parsed = ET.fromstring(html)
    assert not [one for one in parsed.iter() if one.tag.rpartition("}")[2] == "script"]
    assert "http" not in html.replace("http://www.w3.org/2000/svg", "")
    return parsed


def test_a_run_a_timeline_and_an_inbox_show_themselves() -> None:
    with runtime() as rt:
        rt.register(chain(("ask", ask)), name="g")
        started = rt.blocking.start("g", {"log": []}, metadata={"who": HOSTILE}, thread_id=HOSTILE)
        rt.blocking.work(until_idle=True)
        run = rt.blocking.get(started.id)
        shown = check(run._repr_html_())
        assert "".join(shown.itertext()).startswith(f"run{run.id}statewaitinggraphg")
        inbox = rt.blocking.inbox()
        assert isinstance(inbox, Inbox)
        [item] = inbox
        assert (item.record.id, inbox[0], len(inbox[:0])) == (inbox.items[0].record.id, item, 0)  # type: ignore[union-attr]
        assert HOSTILE in "".join(check(inbox._repr_html_()).itertext())
        timeline = rt.blocking.timeline(run.id)
        assert isinstance(timeline, Timeline)
        assert "1 segment by 1 worker, 1 rest" in repr(timeline)
        picture = check(timeline._repr_html_())
        assert [one for one in picture.iter() if "rest person" in one.get("class", "")]
        rt.blocking.answer(item.record.id, "yes")  # type: ignore[union-attr]
        rt.blocking.work(until_idle=True)
        assert "Nothing needs a person" in rt.blocking.inbox()._repr_html_()
        whole, second = rt.blocking.timeline(run.id), rt.blocking.timeline(run.id).segment(2)
        assert [one.segment for one in whole.parts().stretches if one.is_driven] == [1, 2]
        assert [one.segment for one in second.parts().stretches if one.is_driven] == [2]
        assert whole.between(1, 3).zoom is not None
        assert set(whole.totals) == {one.kind for one in whole.periods}
        with pytest.raises(BadArgument, match="has no segment 3"):
            whole.segment(3)
