"""Tests of `perdure.journal`: opening a database, its schema, the queue and its commits."""
