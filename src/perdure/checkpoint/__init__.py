"""Checkpoints in the journal.

    operations  operations on the three tables, pure
    row_format  what each row holds, as bytes in an envelope
    values      a channel's value as rows: inline, one row, or a chain of differences
    cache       what this process remembers of a thread, to find that difference
    writer      from LangGraph's put to operations, and what is waited for
    task_writes the same for put_writes
    reader      from rows back to LangGraph's tuples
    pruner      deleting and copying
    config      what LangGraph's configs say

`perdure.saver` puts LangGraph's interface around it.
"""
