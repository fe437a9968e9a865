"""The runtime over HTTP: `Runtime.asgi()` and `Runtime.router()`.

app             puts the routes together
options         every setting
route           the class of every route: limits, errors
gate            whether a request is admitted; caller, context: what its endpoint gets
lifespan        opens the runtime, runs a worker, drains, closes it
open_streams    the limit of open streams; ends them when the server stops
json_values     any value as JSON
json_body       a body as JSON, read strictly
json_errors     every error as {"detail": "..."}
health          GET /ok, /info, /openapi.json
tick_endpoint   POST /cron/tick, and its secret
agent_api       LangGraph's Agent Server
own_api         /perdure/...
ui              /ui/...: the inbox and the dashboard in the browser
"""
