"""LangGraph's own tests on perdure: `make upstream`.

The sdist of the installed LangGraph, which has the tests, is downloaded into `.upstream/` by name;
nothing of it is kept in this repository. `plugin.py` puts perdure under the tests,
`differences.toml` says which of them are expected to fail and why, `__main__.py` runs and compares.
"""
