-- Acknowledged changes that the database did not have any more when a process looked, because it had
-- gone back in time: an asynchronous standby was promoted, or a backup was restored.
--
-- run_id  empty if it was no change of a run
-- what    the run, its last changes, or the name of an operation
CREATE TABLE perdure_losses (
  thread_id       {text} NOT NULL,
  run_id          {text} NOT NULL,
  what            {text} NOT NULL,
  acknowledged_at BIGINT NOT NULL,
  noticed_at      BIGINT NOT NULL,
  reason          {text} NOT NULL,
  PRIMARY KEY (thread_id, run_id, what)
){one_tree};
