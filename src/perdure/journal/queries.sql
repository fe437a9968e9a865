-- Every statement of perdure, in the common subset of SQLite and PostgreSQL.
--
-- Words: a checkpoint belongs to (thread_id, ns); its state is made of values; writes are what
-- the tasks of its step returned. Time is always a parameter. Several rows are several
-- statements of one batch, so that each finds its row by the key whatever the planner knows.
--
-- Fragment: {keep} keeps a row from being deleted until commit.

-- name: insert_checkpoint
-- Stores a checkpoint. When it builds on the rows of another one (:base), that one must still
-- be there: otherwise the key is NULL and the whole batch is refused.
INSERT INTO perdure_checkpoints
  (thread_id, ns, id, parent_id, run_id, step, created_at, refs, state)
SELECT CASE WHEN CAST(:base AS TEXT) IS NULL OR EXISTS (
         SELECT 1 FROM perdure_checkpoints
         WHERE thread_id = :thread_id AND ns = :ns AND id = :base AND step = :base_step {keep})
       THEN CAST(:thread_id AS TEXT) END,
       CAST(:ns AS TEXT), CAST(:id AS TEXT), CAST(:parent_id AS TEXT), CAST(:run_id AS TEXT),
       CAST(:step AS BIGINT), CAST(:created_at AS BIGINT), CAST(:refs AS TEXT), CAST(:state AS {blob})
WHERE TRUE
ON CONFLICT (thread_id, ns, id) DO UPDATE
SET parent_id = excluded.parent_id, run_id = excluded.run_id, step = excluded.step,
    refs = excluded.refs, state = excluded.state;

-- name: insert_value
-- Stores one change of a channel. Its key is drawn at random, so a conflict is our own retry.
INSERT INTO perdure_values (thread_id, ns, channel, chain, seq, step, base, body)
VALUES (:thread_id, :ns, :channel, :chain, :seq, :step, :base, :body)
ON CONFLICT DO NOTHING;

-- name: insert_writes
-- Stores what one call of put_writes brought. Which of several calls counts is decided by
-- their stamps when they are read. A conflict is our own retry.
INSERT INTO perdure_writes (thread_id, ns, checkpoint_id, task_id, stamp, refs, body)
VALUES (:thread_id, :ns, :checkpoint_id, :task_id, :stamp, :refs, :body)
ON CONFLICT DO NOTHING;

-- name: find_checkpoint
-- Our own key: is this checkpoint stored?
SELECT 1 FROM perdure_checkpoints
WHERE thread_id = :thread_id AND ns = :ns AND id = :id AND step = :step;

-- name: find_writes
-- Our own key: are these writes stored?
SELECT 1 FROM perdure_writes
WHERE thread_id = :thread_id AND ns = :ns AND checkpoint_id = :checkpoint_id
  AND task_id = :task_id AND stamp = :stamp;

-- name: checkpoint_at
-- The newest checkpoint that is not newer than :at.
SELECT thread_id, ns, id, parent_id, run_id, step, refs, state FROM perdure_checkpoints
WHERE thread_id = :thread_id AND ns = :ns AND id <= :at
ORDER BY id DESC LIMIT 1;

-- name: writes_at
-- The writes of the newest checkpoint that is not newer than :at.
SELECT thread_id, ns, checkpoint_id, task_id, stamp, body FROM perdure_writes
WHERE thread_id = :thread_id AND ns = :ns AND checkpoint_id = (
  SELECT id FROM perdure_checkpoints
  WHERE thread_id = :thread_id AND ns = :ns AND id <= :at
  ORDER BY id DESC LIMIT 1);

-- name: writes_of
-- The writes of one checkpoint.
SELECT thread_id, ns, checkpoint_id, task_id, stamp, body FROM perdure_writes
WHERE thread_id = :thread_id AND ns = :ns AND checkpoint_id = :checkpoint_id;

-- name: chain_of
-- The rows of a chain up to one of them.
SELECT channel, chain, seq, step, body FROM perdure_values
WHERE thread_id = :thread_id AND ns = :ns AND channel = :channel AND chain = :chain
  AND seq <= :seq;

-- name: value_at
-- One row of a chain.
SELECT channel, chain, seq, step, body FROM perdure_values
WHERE thread_id = :thread_id AND ns = :ns AND channel = :channel AND chain = :chain
  AND seq = :seq AND step = :step;

-- name: list_namespace
-- Checkpoints of one namespace older than a position, newest first.
SELECT thread_id, ns, id, parent_id, run_id, step, refs, state FROM perdure_checkpoints
WHERE thread_id = :thread_id AND ns = :ns AND id < :before
ORDER BY id DESC LIMIT :count;

-- name: list_thread
-- Checkpoints of a thread older than a position, newest first.
SELECT thread_id, ns, id, parent_id, run_id, step, refs, state FROM perdure_checkpoints
WHERE thread_id = :thread_id AND (id, ns) < (:before, :before_ns)
ORDER BY id DESC, ns DESC LIMIT :count;

-- name: list_all
-- Checkpoints of all threads older than a position, newest first.
SELECT thread_id, ns, id, parent_id, run_id, step, refs, state FROM perdure_checkpoints
WHERE (id, thread_id, ns) < (:before, :before_thread, :before_ns)
ORDER BY id DESC, thread_id DESC, ns DESC LIMIT :count;

-- name: ancestors
-- A checkpoint's ancestors, nearest first, :count of them.
WITH RECURSIVE line (id, depth) AS (
  SELECT parent_id, 1 FROM perdure_checkpoints
  WHERE thread_id = :thread_id AND ns = :ns AND id = :id
  UNION ALL
  SELECT c.parent_id, line.depth + 1 FROM line JOIN perdure_checkpoints AS c
    ON c.thread_id = :thread_id AND c.ns = :ns AND c.id = line.id
  WHERE line.depth < :count
)
SELECT c.thread_id, c.ns, c.id, c.parent_id, c.run_id, c.step, c.refs, c.state
FROM line JOIN perdure_checkpoints AS c
  ON c.thread_id = :thread_id AND c.ns = :ns AND c.id = line.id
ORDER BY line.depth;

-- name: outline_of_thread
-- Every checkpoint of a thread without the values, for pruning.
SELECT ns, id, parent_id, run_id, step, created_at, refs, state FROM perdure_checkpoints
WHERE thread_id = :thread_id ORDER BY ns, id;

-- name: threads
-- All threads.
SELECT DISTINCT thread_id FROM perdure_checkpoints ORDER BY thread_id;

-- name: threads_of_run
-- The threads in which a run made checkpoints.
SELECT DISTINCT thread_id FROM perdure_checkpoints WHERE run_id = :run_id;

-- name: delete_writes
-- Deletes the writes of one checkpoint.
DELETE FROM perdure_writes
WHERE thread_id = :thread_id AND ns = :ns AND checkpoint_id = :id;

-- name: delete_checkpoint
-- Deletes one checkpoint.
DELETE FROM perdure_checkpoints WHERE thread_id = :thread_id AND ns = :ns AND id = :id;

-- name: value_keys
-- What leads where among the values of a thread.
SELECT ns, channel, chain, seq, step, base FROM perdure_values WHERE thread_id = :thread_id;

-- name: checkpoint_refs
-- The values that the checkpoints of a thread refer to.
SELECT ns, refs FROM perdure_checkpoints WHERE thread_id = :thread_id;

-- name: writes_refs
-- The values that the writes of a thread refer to.
SELECT ns, refs FROM perdure_writes WHERE thread_id = :thread_id AND refs IS NOT NULL;

-- name: delete_value
-- Deletes one row of a chain.
DELETE FROM perdure_values
WHERE thread_id = :thread_id AND ns = :ns AND channel = :channel AND chain = :chain
  AND seq = :seq AND step = :step;

-- name: delete_thread_checkpoints
DELETE FROM perdure_checkpoints WHERE thread_id = :thread_id;

-- name: delete_thread_values
DELETE FROM perdure_values WHERE thread_id = :thread_id;

-- name: delete_thread_writes
DELETE FROM perdure_writes WHERE thread_id = :thread_id;

-- name: all_values
-- The values of a thread, for copying it.
SELECT ns, channel, chain, seq, step, base, body FROM perdure_values
WHERE thread_id = :thread_id;

-- name: all_writes
SELECT ns, checkpoint_id, task_id, stamp, refs, body FROM perdure_writes
WHERE thread_id = :thread_id;
