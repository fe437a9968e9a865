"""Tests of what the journal's rows must satisfy."""
