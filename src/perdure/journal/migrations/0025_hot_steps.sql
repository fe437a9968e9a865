-- A step changes no indexed column of its run. On PostgreSQL it then writes no index entry (HOT), if its page
-- has room for another version of the row.
--
-- stop_change  number of the change that stopped it because another run took its thread over
ALTER TABLE perdure_runs ADD COLUMN stop_change BIGINT;
DROP INDEX perdure_runs_stopped;
CREATE INDEX perdure_runs_stopped ON perdure_runs (thread_id, stop_change) WHERE stop_change IS NOT NULL;
DROP INDEX perdure_runs_webhook;
DROP INDEX perdure_runs_graph;
DROP INDEX perdure_runs_unsuccessful;
-- Only delete_for_runs read it, and every checkpoint wrote it.
DROP INDEX perdure_checkpoints_run;
{roomy};
