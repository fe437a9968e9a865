"""Tests of `perdure.serde`: values as bytes, their types, and encryption."""
