"""Tests of `perdure.langmem`: reflections that survive their process."""
