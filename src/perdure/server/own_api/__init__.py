"""`/perdure/...`: what the Agent Server API lacks. One module per resource, each with a `router`.

waits          questions: list, show, answer, withdraw
runs           list, show, join, history of waits, scores
run_controls   pause, resume, cancel, retry, wake, fork
run_events     the history of a run, as pages and live; the events of all runs, live
signals        signals from callers and from other services' webhooks
effects        list, settle
operators      schedules, the outbox, the journal's health

requests       shared parameters, pages and errors; which threads a caller may see
"""
