"""One claimed stretch of a run in this process.

lease           which claim this is; the fence that every write of the segment carries
segment         its state: whether the lease is lost, which effects are under way
progress        its steps, as events of the run; when it last moved
questions       its interrupts, as waits of the run
recorded_reads  what `now()`, `random()` and `uuid()` returned
"""
