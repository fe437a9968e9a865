-- What an agent says of its run as it goes on, and who drove it last: `worker`, `cron` (a tick) or `call`.
ALTER TABLE perdure_runs ADD COLUMN labels {blob};
ALTER TABLE perdure_runs ADD COLUMN driven {text};

-- How well a run did, reported perhaps weeks after its end. `about` is the part of
-- the run that earned it. The last word counts.
CREATE TABLE perdure_scores (
  thread_id {text} NOT NULL,
  run_id    {text} NOT NULL,
  name      {text} NOT NULL,
  about     {text} NOT NULL,
  value     DOUBLE PRECISION NOT NULL,
  at        BIGINT NOT NULL,
  body      {blob} NOT NULL,
  PRIMARY KEY (thread_id, run_id, name, about)
) {one_tree};
