"""The runtime over HTTP: `Runtime.asgi()`."""
