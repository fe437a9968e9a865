-- Lists and sums that few looked at are gone. Of what recovery saves, three counters of a run are left.
--
-- steps, model_calls  steps that its run has stored, and the model calls in them
-- saved_steps         steps that were stored when a segment began, over all its segments
DROP INDEX perdure_runs_saved;
ALTER TABLE perdure_runs DROP COLUMN lost_ms;
ALTER TABLE perdure_runs DROP COLUMN saved_tokens;
ALTER TABLE perdure_runs ADD COLUMN steps INTEGER NOT NULL DEFAULT 0;
ALTER TABLE perdure_runs ADD COLUMN model_calls INTEGER NOT NULL DEFAULT 0;
ALTER TABLE perdure_runs ADD COLUMN saved_steps BIGINT NOT NULL DEFAULT 0;

DROP INDEX perdure_events_decisions;
ALTER TABLE perdure_events DROP COLUMN decision;
