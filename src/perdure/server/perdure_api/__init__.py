"""`/perdure/...`: what the Agent Server API lacks.

verb_routes    verbs, made from their declarations; lists; the outbox; the journal's health
runs           join and fork; the history of a run, as pages and live; the events of all runs, live
signals        signals of any content, and from other services' webhooks

requests       shared parameters, pages and errors; which threads a caller may see
"""
