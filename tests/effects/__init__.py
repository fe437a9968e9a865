"""Tests of `perdure.effects`: calls that are recorded, retried, undone and settled."""
