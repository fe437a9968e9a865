"""What can happen to a run, wait, schedule, score, effect or message: pure, no I/O, no colour."""
