"""Tests of `perdure.observe`: traces, metrics and logs."""
