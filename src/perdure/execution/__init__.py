"""Driving runs: a worker claims one, drives a segment of it with LangGraph, and lets it go.

segment         one claimed stretch of a run: which effects are under way, its questions as waits
progress        its steps as events of the run; what `now()`, `random()` and `uuid()` returned
stream_recorder its output, as chunks; stream_capture: where LangGraph produces it

drive           what a crash leaves behind at each point; what LangGraph is called with
segment_start   what happens before; resuming: the answers and commands that continue the run
segment_end     what the outcome means for the run
engine          the connection of a runtime: its graphs, its worker, its lease keeper
worker          the loop that claims due runs
lease           the thread that renews leases; how other processes see that this one lives
duties          what else workers do: outbox, schedules, deleting what is old

graphs          registered graphs; code_changes: whether a run can go on with new code
bound_graph     what `register` returns; bound_runs: which run a call drives
forks           runs that begin at another run's checkpoint
evaluation_guards   what a run of an evaluation must not do
"""
