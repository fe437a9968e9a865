"""Evaluators that people use: those of openevals, a model as the judge, plain functions."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda
from openevals.exact import exact_match
from openevals.llm import create_async_llm_as_judge, create_llm_as_judge
from openevals.string.levenshtein import levenshtein_distance

from perdure.evals import Example, evaluate
from perdure.runtime import Runtime


class Judge(FakeListChatModel):
    """A model that looks for a greeting."""

    def with_structured_output(self, schema: Any, **options: Any) -> Any:
        def judge(prompt: Any) -> dict[str, Any]:
            text = str(prompt)
            return {"reasoning": "it greets" if "Dear" in text else "no", "score": "Dear" in text}

        return RunnableLambda(judge)


def words(outputs: str) -> int:
    return len(outputs.split())


def short_and_polite(run: Any, example: Any) -> dict[str, Any]:
    """As LangSmith's evaluators are."""
    polite = run.outputs.startswith("Dear") and example.outputs is not None
    return {"results": [{"key": "polite", "score": polite}, {"key": "size", "value": "short"}]}


async def test_openevals_a_model_as_judge_and_plain_functions_judge(sqlite_url: str) -> None:
    prompt = "Is this a greeting? {outputs}"
    greeting = create_llm_as_judge(
        prompt=prompt, judge=Judge(responses=[]), feedback_key="greeting"
    )
    later = create_async_llm_as_judge(
        prompt=prompt, judge=Judge(responses=[]), feedback_key="later"
    )
    greeting.__name__, later.__name__ = "greeting", "later"  # type: ignore[union-attr]
    async with Runtime(sqlite_url) as rt:
        found = await evaluate(
            lambda name: f"Dear {name}",
            [Example("Ada", "Dear Ada"), Example("Bo", "Hello Bo")],
            [exact_match, levenshtein_distance, greeting, later, words, short_and_polite],
            name="e",
            runtime=rt,
        )
    assert [one.evaluator_errors for one in found.results] == [{}, {}]
    ada, bo = (result.scores for result in found.results)
    same = {"greeting": 1.0, "later": 1.0, "words": 2.0, "polite": 1.0, "size": "short"}
    assert ada == {"exact_match": 1.0, "levenshtein_distance": 1.0, **same}
    assert bo == {"exact_match": 0.0, "levenshtein_distance": 0.5, **same}
    assert found.results[0].comments["greeting"] == "it greets"
