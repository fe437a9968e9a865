"""Helpers of the tests: graphs, processes that are killed, and far sides.

Imported as `tests.support.<name>`; some are programs that a test starts with `python -m`.
"""
