"""Tests of `perdure.engine`: graphs, workers, leases, and what a crash leaves."""
