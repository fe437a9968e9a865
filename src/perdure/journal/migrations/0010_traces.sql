-- How much of a run's history each receiver of traces (`sink`) was given: the events up to `n`, and in
-- `body` what is open there, so that any process goes on. `due_at` is NULL while there is nothing to
-- give; the process that exports moves it ahead, and leaves a random number in `change`.
CREATE TABLE perdure_traces (
  thread_id {text} NOT NULL,
  run_id    {text} NOT NULL,
  sink      {text} NOT NULL,
  n         BIGINT NOT NULL,
  due_at    BIGINT,
  change    BIGINT NOT NULL,
  body      {blob} NOT NULL,
  PRIMARY KEY (thread_id, run_id, sink)
) {one_tree};

CREATE INDEX perdure_traces_due ON perdure_traces (sink, due_at) WHERE due_at IS NOT NULL;
