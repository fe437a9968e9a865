"""Kills at single I/O operations: `python -m matrix.kills`, or `make kills`.

Two agents of every feature that decides about "nothing twice", killed at any one of the writes,
syncs, locks, sends and receives of their processes, recovered by other processes, which are killed
too, and judged by what happened outside of them.
"""
