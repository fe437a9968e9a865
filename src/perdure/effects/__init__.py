"""Effects: calls that leave the process, recorded before and after, and settled after a crash.

An intent with the arguments and the key is on disk before the call is made, and with it every
checkpoint before it; then comes the call, then its outcome. Only the holder of the intent stores an
outcome (write_effect), under the lease of the run. What each crash leaves behind, and which
statement decides: "The life of an effect" in ARCHITECTURE.md.

    decorator     @perdure.effect: a call is recorded in a run, plain outside; effects by name; the
                  outbox, messages that are sent once their transaction is committed
    spec          the options of an effect, and its business keys
    task          which run, task and attempt a call belongs to
    matching      which record of a task is a call's own
    call          one call and its record: found, stored, brought to its outcome
    settlement    what to do with a call, from any state it is found in; how functions are called,
                  in either colour, and in a transaction
    context       key() and transaction(), for the function of an effect
    compensation  undoes the effects of a cancelled run
    simulation    effects in a run of an evaluation
"""
