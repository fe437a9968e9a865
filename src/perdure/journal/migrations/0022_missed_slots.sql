-- What a schedule did not start, and the thread whose erasure deletes it.
--
-- thread_id  the thread on which its runs are; NULL: each has its own
-- missed     how many slots started no run
-- missed_at  when the last of them was passed over
-- problem    why it started no run when it was last due; NULL once it does
ALTER TABLE perdure_schedules ADD COLUMN thread_id {text};
ALTER TABLE perdure_schedules ADD COLUMN missed BIGINT NOT NULL DEFAULT 0;
ALTER TABLE perdure_schedules ADD COLUMN missed_at BIGINT;
ALTER TABLE perdure_schedules ADD COLUMN problem {text};
