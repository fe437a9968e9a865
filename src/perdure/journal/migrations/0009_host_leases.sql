-- When the lease of a running run ends by the monotonic clock of its worker's host, in milliseconds. Which
-- clock that is, is the last part of the worker's id. NULL or 0: only `due_at` says it.
ALTER TABLE perdure_runs ADD COLUMN lease_until BIGINT;
