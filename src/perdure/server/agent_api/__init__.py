"""The wire of LangGraph's Agent Server: a module per resource, each with a `router`."""
