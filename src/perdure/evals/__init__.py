"""Evaluation: examples as durable runs whose effects do not leave the process.

examples = [Example("ada", expected="Dear Ada,"), Example("grace", expected="Dear Grace,")]
found = await evaluate("campaign", examples, [correct], name="b", runtime=runtime)
print(found.table(Evaluation.read("a.jsonl")))

evaluation    evaluate: the target as a graph, its runs and their rules for effects, the evaluators
examples      examples from values, a JSON Lines file, or a dataset of LangSmith
evaluators    what judges, and what it may return
results       Evaluation and Result: as a table, and in a file to compare with

Nothing is stored but the runs and their scores.
"""

from perdure.errors import EffectRefused, Unanswered
from perdure.evals.evaluation import evaluate
from perdure.evals.examples import read_examples
from perdure.evals.results import Evaluation, Result
from perdure.types import Example

__all__ = [
    "EffectRefused",
    "Evaluation",
    "Example",
    "Result",
    "Unanswered",
    "evaluate",
    "read_examples",
]
