"""The crash matrix: agents of every shape, killed everywhere, with perdure and with its neighbours.

`python -m matrix` runs it, and writes its section of docs/evidence.md.
"""
