"""Effects settle: what leaves the process is recorded before and after, and found again.

An intent with the arguments and the key is on disk before the call is made, and with it every
checkpoint before it; then comes the call, then its outcome. What each crash leaves behind, and
which statement decides:

    before the intent is on disk   nothing: the call is made as if for the first time
    intent on disk                 open: whether it was called is not known. take_effect lets one
    called, outcome not on disk      caller go on, as its policy says: ask the far side (verify),
                                     call again with the same key, or hold the run for a person
    outcome on disk                done or failed: returned or raised, never called again
    between two attempts           open, with the number of attempts and when the next one is due

An outcome is stored only by whoever has the intent (write_effect), under the lease of the run.

    ops       the rows, and the operations on them: pure, no I/O, no colour
    record    what is kept of arguments, results and exceptions
    desk      where a call stands: its task, and which record is its own
    settle    one call, from wherever it was left
    inside    what the function of an effect can ask: its key, its transaction
    deeds     the calls themselves, in either colour
    call      the decorator
    undo      compensations, for a run that is cancelled
    outbox    messages that go out once what made them is committed
"""
