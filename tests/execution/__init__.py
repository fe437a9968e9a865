"""Tests of `perdure.execution`: graphs, workers, leases, and what a crash leaves."""
