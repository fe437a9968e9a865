"""What can happen to runs, waits, schedules, scores, effects and messages: one file per noun."""
