-- Schedules that callers over HTTP change and look at.
--
-- enabled   0: it starts no run until it is enabled again
-- end_at    the last time at which it starts a run; NULL: it has no end
ALTER TABLE perdure_schedules ADD COLUMN enabled INTEGER NOT NULL DEFAULT 1;
ALTER TABLE perdure_schedules ADD COLUMN end_at BIGINT;
ALTER TABLE perdure_schedules ADD COLUMN created_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE perdure_schedules ADD COLUMN updated_at BIGINT NOT NULL DEFAULT 0;
