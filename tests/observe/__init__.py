"""Tests of `perdure.observe`: what is told of runs to whoever watches them."""
