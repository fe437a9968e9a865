-- Whose turn it is with something that only one run at a time may work on. It is its run's as long as
-- that is driven.
CREATE TABLE perdure_turns (
  scope {text} NOT NULL PRIMARY KEY,
  run_id {text} NOT NULL
);
CREATE INDEX perdure_turns_run ON perdure_turns (run_id);

-- The runs of a thread that are not over: however many were before them, they are found at once.
CREATE INDEX perdure_runs_open ON perdure_runs (thread_id, n)
WHERE state NOT IN ('done', 'failed', 'cancelled');

-- Those that a later run of their thread took the place of.
CREATE INDEX perdure_runs_stopped ON perdure_runs (thread_id, change) WHERE control = 'cancel';
