"""The tests, one folder per layer of the package. `tests.support` holds their helpers."""
