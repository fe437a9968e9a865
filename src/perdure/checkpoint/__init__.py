"""Checkpoints in the journal.

    ops     operations on the three tables, pure
    rows    what is inside a row, and the seal around it
    cells   how a channel's value becomes rows: only what changed
    lanes   what this process remembers of a thread, to find what changed
    write   from LangGraph's put and put_writes to operations
    read    from rows back to LangGraph's tuples
    prune   deleting and copying
    config  what LangGraph's configs and checkpoints say

`perdure.saver` puts LangGraph's interface around it.
"""
