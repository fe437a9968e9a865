"""Tests of `perdure.testing`: the tools that the other tests stand on."""
