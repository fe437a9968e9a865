-- What crashes cost a run, and the index by which the saved work of all runs is summed up.
--
-- recoveries  claims after a worker that was lost
-- lost_ms     the time from the last event of each such worker to the next claim
ALTER TABLE perdure_runs ADD COLUMN recoveries INTEGER NOT NULL DEFAULT 0;
ALTER TABLE perdure_runs ADD COLUMN lost_ms BIGINT NOT NULL DEFAULT 0;

CREATE INDEX perdure_runs_saved
ON perdure_runs (created_at, graph, saved_effects, saved_calls, saved_tokens, recoveries, lost_ms)
WHERE saved_effects > 0 OR recoveries > 0;
