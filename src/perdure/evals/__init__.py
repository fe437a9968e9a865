"""Evaluation against datasets, as durable runs whose effects do not leave the process.

examples = [Example("ada", expected="Dear Ada,"), Example("grace", expected="Dear Grace,")]
letters = await Dataset.create(runtime, "letters", examples)
experiment = await evaluate("campaign", letters, [correct], experiment="b", runtime=runtime)
compare(await Experiment.load(runtime, "a"), experiment)

datasets      Dataset: examples, versioned in the journal
evaluation    evaluate: the runs of the target, then the runs that judge them
targets       what is evaluated, as a graph
policy        what is done about effects, as it is stored in each run
evaluators    what judges, and what it may return
judging       the graph that asks the evaluators and stores their scores
experiments   Experiment and Result: read from the journal
comparison    compare: two experiments, paired by example
report        table and page: experiments as people read them
checks        Experiment.check: a gate for a build
formats       examples in files: JSON Lines, LangSmith's form, CSV
langsmith_datasets   datasets of LangSmith itself
from_runs     examples from real runs: an approval or an edit makes one
functions     functions that evaluate, called by name
pytest_plugin the fixture `evaluation`
"""

from typing import TYPE_CHECKING, Any

from perdure.errors import EffectRefused, ExperimentChanged, Unanswered
from perdure.evals.comparison import ChangedExample, Comparison, ScoreComparison, compare
from perdure.evals.datasets import Dataset
from perdure.evals.experiments import Experiment, ScoreSummary
from perdure.evals.from_runs import from_runs
from perdure.evals.policy import Effects
from perdure.evals.report import page, table
from perdure.service.experiments import Result
from perdure.types import DatasetInfo, Example, ExperimentInfo

if TYPE_CHECKING:
    from perdure.evals.evaluation import evaluate

__all__ = [
    "ChangedExample",
    "Comparison",
    "Dataset",
    "DatasetInfo",
    "EffectRefused",
    "Effects",
    "Example",
    "Experiment",
    "ExperimentChanged",
    "ExperimentInfo",
    "Result",
    "ScoreComparison",
    "ScoreSummary",
    "Unanswered",
    "compare",
    "evaluate",
    "from_runs",
    "page",
    "table",
]


def __getattr__(name: str) -> Any:
    if name == "evaluate":  # it loads LangGraph; what only reads does not
        from perdure.evals.evaluation import evaluate

        return evaluate
    raise AttributeError(f"module 'perdure.evals' has no attribute {name!r}")
