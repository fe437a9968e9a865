"""Checkpoints in the journal.

    rows        what each row holds: keys, bytes in an envelope, and operations, pure
    values      a channel's value as rows: inline, one row, or a chain of differences
    cache       what this process remembers of a thread, to find that difference
    writer      from LangGraph's put and put_writes to operations, and what is waited for
    raised_interrupts  interrupts that a node caught
    reader      from rows back to LangGraph's tuples
    pruner      deleting and copying

`perdure.saver` puts LangGraph's interface around it.
"""
