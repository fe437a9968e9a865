"""Tests of `perdure.operations`: what the journal's rows must satisfy."""
