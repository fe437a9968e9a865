"""Tests of the saver and of `perdure.checkpoint`: what is stored of a graph's state."""
