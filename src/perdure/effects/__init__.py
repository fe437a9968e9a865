"""Effects: calls that leave the process, recorded before and after, and settled after a crash.

An intent with the arguments and the key is on disk before the call is made, and with it every
checkpoint before it; then comes the call, then its outcome. What each crash leaves behind, and
which statement decides:

    before the intent is on disk   nothing: the call is made as if for the first time
    intent on disk                 open: whether it was called is not known. take_effect lets one
    called, outcome not on disk      process continue, as the policy says: ask the far side
                                     (verify), call again with the same key, or hold the run
    outcome on disk                done or failed: returned or raised, never called again
    between two attempts           open, with the number of attempts and the time of the next one

Only the holder of the intent stores an outcome (write_effect), under the lease of the run.

    decorator         @perdure.effect, and effects by name
    spec              the options of an effect
    perform           a call: recorded in a run, plain outside of one
    identity          which run, task and attempt a call belongs to
    call_position     whether a call's turn in its task identifies it
    record_matching   which record is a call's own
    keys              the keys of effects, and business keys
    call_record       the record of one call: found, stored, brought to its outcome
    settlement        what to do with a call, from any state it is found in
    invocation        the calls of functions, in either colour
    context           key() and transaction(), for the function of an effect
    recording         what is stored of arguments, results and exceptions
    compensation      undoes the effects of a cancelled run
    outbox            messages that are sent once their transaction is committed
"""
