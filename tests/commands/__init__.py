"""Tests of commands: runs, waits, answers, signals, schedules, streams and what is read of them."""
