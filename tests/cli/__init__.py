"""Tests of `perdure.cli`: the commands, and what they print."""
