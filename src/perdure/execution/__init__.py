"""Driving runs: a worker claims one, drives a segment of it with LangGraph, and lets it go.

segment         one claimed stretch of a run: its lease, and which effects are under way
progress        its steps as events of the run; questions: its interrupts as waits
recorded_reads  what `now()`, `random()` and `uuid()` returned
stream_recorder its output, as chunks; stream_capture: where LangGraph produces it

drive           what a crash leaves behind at each point; what LangGraph is called with
start           what happens before; continuation, answers: what continues the run
finish          what the outcome means for the run
worker          the loop that claims due runs; lease: the thread that renews leases
liveness        how other processes see that this one lives
sweeps          what workers delete; schedules, outbox: what else they do

graphs          registered graphs; topology, code_changes: whether a run can go on with new code
bound_graph     what `register` returns; bound_runs, bound_call: which run a call drives
"""
