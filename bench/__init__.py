"""What perdure costs next to stock LangGraph and DBOS: `python -m bench`, or `make bench`.

Every measurement runs all contenders in one go, interleaved round by round, so that a busy machine
affects all of them. Ratios are the result. Absolute times depend on the machine.

A file per measurement, listed in `__main__`. Each has one function that takes a `Bench` and returns
tables. What they mean is written by hand in docs/benchmarks, around the tables.
"""
