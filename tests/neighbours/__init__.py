"""Tests that show what other projects do: their faults, which the docs speak of."""
