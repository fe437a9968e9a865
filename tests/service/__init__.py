"""Tests of runs, waits, answers, signals and schedules."""
