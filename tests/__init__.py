"""The tests. Helpers in here are imported as `tests.<name>`, by the tests and their children."""
