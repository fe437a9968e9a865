"""`/perdure/...`: what the Agent Server API lacks. One module per resource, each with a `router`.

waits          questions: list, show, answer, withdraw
runs           list, show, join, history of waits
run_controls   pause, resume, cancel, retry, wake, fork
run_events     the history of a run, as pages and live; the events of all runs, live
signals        signals from callers and from other services' webhooks
effects        list, settle
schedules      put, list, delete
scores         of a run
operators      the outbox, the journal's health

access         which threads a caller may see; who acts
requests       shared parameters, positions in lists, and errors
"""
