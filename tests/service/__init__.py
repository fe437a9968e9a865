"""Tests of `perdure.service`: runs, waits, answers, signals and schedules."""
