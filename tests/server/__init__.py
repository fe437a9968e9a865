"""Tests of `perdure.server`: the runtime over HTTP."""
