-- Child runs, and runs that wait for other runs.
--
-- parent_id              the run whose node started it
-- depth                  how many runs are above it
-- ignores_parent_cancel  1: it goes on when its parent is cancelled
ALTER TABLE perdure_runs ADD COLUMN parent_id {text};
ALTER TABLE perdure_runs ADD COLUMN depth INTEGER NOT NULL DEFAULT 0;
ALTER TABLE perdure_runs ADD COLUMN ignores_parent_cancel INTEGER NOT NULL DEFAULT 0;

CREATE INDEX perdure_runs_parent ON perdure_runs (parent_id, created_at, id)
WHERE parent_id IS NOT NULL;

-- The runs that a wait of the kind `run` is for, one row each. The end of a run finds its waiters here.
CREATE TABLE perdure_joins (
  thread_id     {text} NOT NULL,
  wait_id       {text} NOT NULL,
  joined_thread {text} NOT NULL,
  joined_id     {text} NOT NULL,
  PRIMARY KEY (thread_id, wait_id, joined_id)
) {one_tree};

CREATE INDEX perdure_joins_joined ON perdure_joins (joined_thread, joined_id);
