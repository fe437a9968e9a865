"""Driving runs: a worker claims one, drives a segment of it with LangGraph, and lets it go.

segment         one claimed stretch of a run: which effects are under way, its questions as waits
progress        its steps as events of the run; what `now()`, `random()` and `uuid()` returned
stream_recorder its output, as chunks; stream_capture: where LangGraph produces it

drive           what a crash leaves behind at each point; what LangGraph is called with
start           what happens before; answers: what continues the run
finish          what the outcome means for the run
worker          the loop that claims due runs
lease           the thread that renews leases; how other processes see that this one lives
duties          what else workers do: outbox, schedules, deleting what is old

graphs          registered graphs; code_changes: whether a run can go on with new code
bound_graph     what `register` returns; bound_runs: which run a call drives
"""
