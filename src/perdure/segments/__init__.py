"""One claimed stretch of a run: its lease, and what its driver learns on the way."""
