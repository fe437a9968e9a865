"""Promises, tested through public names only: what is inside may be rebuilt."""
