"""Evaluations as tests: a fixture that evaluates, so that an experiment can gate a build.

It is not loaded automatically, since perdure may be installed where other tests run. In
`conftest.py`:

    pytest_plugins = ["perdure.evals.pytest_plugin"]

The journal is a temporary one unless `--evals-journal` or the setting `evals_journal` names one by
its URL. In a lasting journal a baseline can be loaded, and the results are kept.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from perdure.evals import Experiment
    from perdure.runtime import Runtime


class Evaluations:
    """The value of the pytest fixture `evaluation`: evaluates without an event loop."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        self.runtime, self._name = runtime, name

    def __call__(
        self,
        target: Any,
        dataset: Any,
        evaluators: Sequence[Callable[..., Any]],
        *,
        experiment: str | None = None,
        **options: Any,
    ) -> Experiment:
        """Evaluate a target, as `perdure.evals.evaluate` does.

        Args:
            target: As for `evaluate`.
            dataset: As for `evaluate`.
            evaluators: As for `evaluate`.
            experiment: The name of the experiment, which goes on if it exists. By default each call
                is a new experiment, named after its test.
            **options: The other arguments of `evaluate`.
        """
        from perdure.evals import evaluate

        return self.runtime.blocking.run(
            evaluate(
                target,
                dataset,
                evaluators,
                experiment=experiment or self._new_name(),
                runtime=self.runtime,
                **options,
            )
        )

    def run(self, function: Callable[..., Any], *, experiment: str | None = None) -> Experiment:
        """Call a function that evaluates, as `perdure evals run` does.

        Args:
            function: Takes `runtime` and `experiment`, and returns the result of `evaluate`.
            experiment: The name of the experiment. By default a new one, named after its test.
        """
        from perdure.evals.functions import call

        work = call(function, self.runtime, experiment or self._new_name())
        return self.runtime.blocking.run(work)

    def load(self, name: str) -> Experiment:
        """Read an experiment of the journal, such as a baseline.

        Args:
            name: The name of the experiment.

        Raises:
            NotFound: The journal has no such experiment.
        """
        from perdure.evals import Experiment

        return self.runtime.blocking.run(Experiment.load(self.runtime, name))

    def _new_name(self) -> str:
        return f"{self._name}-{uuid.uuid4().hex[:8]}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the setting that name the journal."""
    said = "URL of the journal that evaluations are stored in. Default: a temporary one."
    parser.getgroup("perdure").addoption("--evals-journal", metavar="URL", help=said)
    parser.addini("evals_journal", help=said, default="")


@pytest.fixture(scope="session")
def evaluation_runtime(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runtime]:
    """The runtime of all evaluations of the session. Override it to set options or graphs."""
    from perdure.runtime import Runtime

    url = request.config.getoption("--evals-journal") or request.config.getini("evals_journal")
    folder = None if url else tmp_path_factory.mktemp("evals")
    with Runtime(url or f"sqlite:///{folder}/journal.db") as runtime:
        yield runtime


@pytest.fixture
def evaluation(request: pytest.FixtureRequest, evaluation_runtime: Runtime) -> Evaluations:
    """Evaluates a target: `evaluation(target, dataset, evaluators)` returns its `Experiment`."""
    return Evaluations(evaluation_runtime, request.node.name)
