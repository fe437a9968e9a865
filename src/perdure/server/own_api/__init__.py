"""`/perdure/...`: what only perdure has. A module per resource, each with a `router`."""
