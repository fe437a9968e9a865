-- The end of a running run's lease by the monotonic clock of its worker's host, in milliseconds. The last
-- part of the worker's id identifies that clock. NULL or 0: only `due_at` applies.
ALTER TABLE perdure_runs ADD COLUMN lease_until BIGINT;
