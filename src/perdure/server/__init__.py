"""The runtime over HTTP: `Runtime.asgi()` and `Runtime.router()`.

app             puts the routes together; GET /ok, /info, /metrics, /openapi.json
options         every setting
routes          the class of every route, and what its endpoint gets
authentication  who calls, and from where
authorization   what they may do: scopes, and the handlers of `langgraph_sdk.Auth`
origins         which host names, addresses and web pages may call
bodies          a body, read within limits and strictly
errors          every error as {"detail": "..."}
lifespan        opens the runtime, runs a worker, drains, closes it; ends open streams
ticks           POST /cron/tick, and its secret
http_server     uvicorn, for `perdure serve` and `perdure dev`
agent_api       LangGraph's Agent Server
perdure_api         /perdure/...
ui              /ui/...: the inbox and the dashboard in the browser
"""
