"""The runtime over HTTP: `Runtime.asgi()`.

app             the application: its routes
lifespan        opens the runtime, drains its ticks, closes it
tick_endpoint   POST /cron/tick
health          GET /ok
secret          who may tick
json_body       a body as JSON, read strictly
json_errors     every error as {"error": "..."}
"""
