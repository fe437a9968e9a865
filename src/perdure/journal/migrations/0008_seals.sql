-- Authenticates which task asks (ns, checkpoint_id, task_id, path, stamp), so that an answer cannot be
-- handed to another one. NULL in rows of older versions.
ALTER TABLE perdure_waits ADD COLUMN seal {blob};
