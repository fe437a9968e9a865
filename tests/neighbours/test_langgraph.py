"""What stock LangGraph does where a bound graph does otherwise."""

from __future__ import annotations

from langgraph.checkpoint.memory import InMemorySaver

from tests.support.bound import Gate, T, sequence, two_calls


def test_stock_langgraph_loses_one_of_two_calls_at_once() -> None:
    """What this is about: two calls succeed, and the input of one is gone."""
    gates = [gate := Gate("one"), other := Gate("two")]
    turn = iter(gates)
    graph = sequence(gate=lambda state: next(turn)(state)).compile(checkpointer=InMemorySaver())

    def both_are_in() -> None:
        assert other.entered.wait(30)
        other.open.set()

    two_calls(graph, gate, both_are_in)
    assert len(graph.get_state(T).values["log"]) < len(["first", "one", "second", "two"])
