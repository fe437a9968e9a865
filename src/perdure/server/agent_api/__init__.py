"""The Agent Server's wire: one module per resource, each with its `router`."""
