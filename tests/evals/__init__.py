"""Tests of `perdure.evals`: datasets, evaluations, and that nothing leaves the process."""
