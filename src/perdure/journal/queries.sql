-- Every statement of perdure, in the common subset of SQLite and PostgreSQL.
--
-- Words: a checkpoint belongs to (thread_id, ns); its state is made of values; writes are what
-- the tasks of its step returned. Time is always a parameter. Several rows are several
-- statements of one batch, so that each finds its row by its key, without table statistics. A statement
-- that is to use a partial index repeats its condition, such as run_id <> '' of perdure_effects_run.
--
-- Fragments of the dialects: {keep} keeps a row from being deleted until commit, {share} from
-- being changed; {lock} locks it, {skip} too, but passes over rows that others locked; {refuse} is a number
-- that cannot be stored, so a guard that gives it refuses the batch;
-- {names} is the list in the JSON parameter :names; {clock} is the time; {bytes} is the size of the
-- database; {identity} says which one it is, {standbys} which others follow it; {returning_event} is what
-- a statement that stores events returns. The others, which are the same everywhere, are these:

-- fragment: run
thread_id, id, n, graph, version, key, state, due_at, ready_at, token, attempts, begun, was, control,
undo, events, created_at, updated_at, fingerprint, reason, setup, output, error, saved_steps,
saved_effects, saved_calls, labels, driven, parent_id, depth, streams, streamed, webhook,
EXISTS (SELECT 1 FROM perdure_checkpoints AS c WHERE c.thread_id = perdure_runs.thread_id)

-- fragment: effect
scope, task, name, n, key, thread_id, run_id, checkpoint_id, state, intent, attempts, digest, undo, mark,
settled, due_at, created_at, updated_at, arguments, outcome, min_equal, provisional_digests, unconfirmed

-- fragment: wait
thread_id, id, run_id, kind, name, state, interrupt_id, ns, checkpoint_id, task_id, path, stamp, wake_at,
expires_at, created_at, answered_at, answered_by, body, answer, seal,
COALESCE(graph, (SELECT r.graph FROM perdure_runs AS r
                 WHERE r.thread_id = perdure_waits.thread_id AND r.id = perdure_waits.run_id)), assignee

-- fragment: schedule
name, graph, cron, timezone, catch_up, next_at, body, enabled, end_at, created_at, updated_at, thread_id,
missed, missed_at, problem

-- fragment: schedule_fails
-- A schedule that is to start runs, and has not: its last slots were missed, or no process fires it.
enabled = 1 AND (problem IS NOT NULL OR next_at <= :late AND (end_at IS NULL OR next_at <= end_at))

-- fragment: ended
-- The states in which a run has ended.
('done', 'failed', 'cancelled')

-- fragment: continued
-- Of a claim: whether a worker was lost, and what is stored and not done again.
recoveries = recoveries + CASE WHEN state = 'running' THEN 1 ELSE 0 END,
saved_steps = saved_steps + steps, saved_calls = saved_calls + model_calls

-- fragment: held
-- A driven run whose lease has not ended by the clock that this host shares with its worker.
(state = 'running' AND COALESCE(worker, '') LIKE :clock AND COALESCE(lease_until, 0) > :tick
 AND COALESCE(lease_until, 0) <= :latest)

-- fragment: undo
-- The run has effects to undo.
EXISTS (SELECT 1 FROM perdure_effects AS e
        WHERE e.run_id = perdure_runs.id AND e.run_id <> '' AND e.undo = 1 AND e.state = 'done')

-- fragment: joined
-- The runs that a wait `w` is for have ended.
w.kind = 'run' AND NOT EXISTS (
  SELECT 1 FROM perdure_joins AS o JOIN perdure_runs AS c
    ON c.thread_id = o.joined_thread AND c.id = o.joined_id
  WHERE o.thread_id = w.thread_id AND o.wait_id = w.id AND c.state NOT IN {ended})

-- fragment: descendants
-- The children of the runs that change :by stopped, and theirs.
WITH RECURSIVE stopped (id) AS (
    SELECT id FROM perdure_runs
    WHERE thread_id = :thread_id AND id = :id AND change = :by
      AND (state = 'cancelled' OR control = 'cancel')
    UNION ALL
    SELECT id FROM perdure_runs WHERE thread_id = :thread_id AND stop_change = :by AND change = :by),
  tree (id) AS (
    SELECT c.id FROM stopped JOIN perdure_runs AS c
      ON c.parent_id = stopped.id AND c.ignores_parent_cancel = 0
    UNION SELECT c.id FROM tree JOIN perdure_runs AS c
      ON c.parent_id = tree.id AND c.ignores_parent_cancel = 0)
SELECT id FROM tree

-- fragment: cancels
-- The run is cancelled with this state, and has effects to undo.
((CAST(:state AS TEXT) = 'cancelled'
  OR (control = 'cancel' AND CAST(:state AS TEXT) NOT IN ('done', 'failed', 'held'))) AND {undo})

-- fragment: settled
-- A person settled an effect since the last claim, and none is unknown.
NOT EXISTS (SELECT 1 FROM perdure_effects AS e
            WHERE e.run_id = perdure_runs.id AND e.run_id <> '' AND e.state = 'unknown')
AND EXISTS (SELECT 1 FROM perdure_events AS v
            WHERE v.thread_id = perdure_runs.thread_id AND v.run_id = perdure_runs.id
              AND v.kind = 'settled' AND v.n > (
                SELECT max(c.n) FROM perdure_events AS c
                WHERE c.thread_id = perdure_runs.thread_id AND c.run_id = perdure_runs.id
                  AND c.kind IN ('claimed', 'recovered')))

-- fragment: released
-- The run was to be held for effects that were settled meanwhile.
(:held = 1 AND (control IS NULL OR (control = 'cancel' AND {undo})) AND {settled})

-- fragment: withdrawable
-- A person's answer that its task has not gone on with, of a run that is not driven.
kind = 'human' AND state IN ('answered', 'applied') AND answer IS NOT NULL
AND (expires_at IS NULL OR answered_at < expires_at)
AND NOT EXISTS (SELECT 1 FROM perdure_checkpoints AS c
                WHERE c.thread_id = perdure_waits.thread_id AND c.ns = perdure_waits.ns
                  AND c.id > perdure_waits.checkpoint_id)
AND EXISTS (SELECT 1 FROM perdure_runs AS r
            WHERE r.thread_id = perdure_waits.thread_id AND r.id = perdure_waits.run_id
              AND (r.state IN ('pending', 'waiting', 'paused', 'held')
                   OR r.state = 'failed'
                      AND NOT EXISTS (SELECT 1 FROM perdure_runs AS l
                                      WHERE l.thread_id = r.thread_id AND l.n > r.n
                                        AND (l.begun = 1 OR l.state = 'running'))
                      AND NOT EXISTS (SELECT 1 FROM perdure_effects AS e
                                      WHERE e.run_id = r.id AND e.run_id <> '' AND e.state = 'unknown')))

-- fragment: over
-- The run has ended.
EXISTS (SELECT 1 FROM perdure_runs AS r
        WHERE r.thread_id = :thread_id AND r.id = :id AND r.state IN {ended})

-- fragment: no_runs
NOT EXISTS (SELECT 1 FROM perdure_runs AS r WHERE r.thread_id = :thread_id)

-- fragment: no_checkpoints
NOT EXISTS (SELECT 1 FROM perdure_checkpoints WHERE thread_id = :thread_id)

-- fragment: is_deletable
-- The state of a thread may be deleted: of one whose only run has ended (`alone`), that has `no runs`, or
-- of any.
CASE CAST(:only AS TEXT)
  WHEN 'alone' THEN {over} AND NOT EXISTS (
    SELECT 1 FROM perdure_runs AS o WHERE o.thread_id = :thread_id AND o.id <> :id)
  WHEN 'no runs' THEN {no_runs} ELSE TRUE END

-- fragment: rows_left
-- A thread without runs has other rows.
EXISTS (SELECT 1 FROM perdure_checkpoints AS l WHERE l.thread_id = :thread_id)
OR EXISTS (SELECT 1 FROM perdure_writes AS l WHERE l.thread_id = :thread_id)
OR EXISTS (SELECT 1 FROM perdure_values AS l WHERE l.thread_id = :thread_id)
OR EXISTS (SELECT 1 FROM perdure_effects AS l WHERE l.thread_id = :thread_id)
OR EXISTS (SELECT 1 FROM perdure_signals AS l WHERE l.thread_id = :thread_id)
OR EXISTS (SELECT 1 FROM perdure_outbox AS l WHERE l.thread_id = :thread_id)

-- fragment: old_effect
-- An effect of a task whose checkpoint is gone, and that cannot run again, without a runtime.
scope = :thread_id AND run_id = '' AND state IN ('done', 'failed')
AND checkpoint_id NOT IN (SELECT id FROM perdure_checkpoints WHERE thread_id = :thread_id)

-- fragment: trace_due
-- A trace is due: now, or when the process that exports it has noted what it gave.
due_at = CASE WHEN perdure_traces.change <> 0 AND perdure_traces.due_at > :now
         THEN perdure_traces.due_at ELSE CAST(:now AS BIGINT) END,
change = -ABS(perdure_traces.change)

-- fragment: assistant
id, version, graph, name, created_at, updated_at, change, body

-- fragment: last_run
-- The last run of each thread `t`, without those that were rolled back.
LEFT JOIN perdure_runs AS l ON l.thread_id = t.thread_id AND l.n = (
  SELECT o.n FROM perdure_runs AS o WHERE o.thread_id = t.thread_id AND o.undo = 0
  ORDER BY o.n DESC LIMIT 1)

-- fragment: thread_rows
perdure_threads AS t {last_run}

-- fragment: thread_status
-- The status of a thread: by the run that is under way, else by the last one.
COALESCE(
  (SELECT CASE WHEN h.state IN ('pending', 'running') THEN 'busy' WHEN h.state = 'paused' THEN 'interrupted'
               WHEN h.state <> 'waiting' THEN 'error'
               WHEN COALESCE(h.due_at, CAST(:now AS BIGINT) + 1) > :now AND EXISTS (
                 SELECT 1 FROM perdure_waits AS w
                 WHERE w.run_id = h.id AND w.state = 'open' AND w.kind = 'human') THEN 'interrupted'
               ELSE 'busy' END
   FROM perdure_runs AS h WHERE h.thread_id = t.thread_id AND h.state NOT IN {ended} ORDER BY h.n LIMIT 1),
  CASE WHEN l.state = 'failed' THEN 'error'
       WHEN l.state = 'cancelled' AND l.begun = 1 OR t.has_next = 1 THEN 'interrupted' ELSE 'idle' END)

-- fragment: has_status
(CAST(:status AS TEXT) IS NULL OR {thread_status} = CAST(:status AS TEXT))

-- fragment: is_listed
(CAST(:graph AS TEXT) IS NULL OR t.graph = :graph)
AND (CAST(:assistant AS TEXT) IS NULL OR t.assistant = :assistant) AND {has_status}

-- fragment: thread
t.thread_id, t.graph, t.assistant, t.created_at, t.updated_at, t.expires_at, t.change, t.body,
{thread_status}, l.id, l.graph, l.version, l.updated_at

-- fragment: text_key
CASE CAST(:sort AS TEXT) WHEN 'thread_id' THEN t.thread_id WHEN 'status' THEN {thread_status} END

-- fragment: thread_order
-- By the column that :sort names: upwards if :direction is 1, downwards if it is -1.
CAST(:direction AS BIGINT) * CASE CAST(:sort AS TEXT)
  WHEN 'created_at' THEN t.created_at WHEN 'updated_at' THEN t.updated_at
  WHEN 'state_updated_at' THEN COALESCE(l.updated_at, t.updated_at) END,
CASE WHEN :direction = 1 THEN {text_key} END, CASE WHEN :direction = -1 THEN {text_key} END DESC,
CASE WHEN :direction = 1 THEN t.thread_id END, t.thread_id DESC

-- name: insert_checkpoint
-- Stores a checkpoint. When it builds on the rows of another one (:base), that one must still
-- be there, and so must the run (:lease_of) whose driver stores it: otherwise the whole
-- batch is refused.
INSERT INTO perdure_checkpoints
  (thread_id, ns, id, parent_id, run_id, step, created_at, refs, state)
SELECT CASE WHEN (CAST(:base AS TEXT) IS NULL OR EXISTS (
         SELECT 1 FROM perdure_checkpoints
         WHERE thread_id = :thread_id AND ns = :ns AND id = :base AND step = :base_step {keep}))
       AND (CAST(:lease_of AS TEXT) IS NULL OR EXISTS (
         SELECT 1 FROM perdure_runs WHERE thread_id = :thread_id AND id = :lease_of))
       THEN CAST(:thread_id AS TEXT) ELSE CAST({refuse} AS TEXT) END,
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
-- Stores the writes of one call of put_writes. Which of several calls counts is decided by
-- their stamps when they are read. A conflict is our own retry. Of a run (:run_id) it refuses the
-- batch unless the lease is still ours.
INSERT INTO perdure_writes (thread_id, ns, checkpoint_id, task_id, stamp, refs, body)
SELECT CASE WHEN CAST(:run_id AS TEXT) IS NULL OR EXISTS (
         SELECT 1 FROM perdure_runs
         WHERE thread_id = :thread_id AND id = :run_id AND token = CAST(:token AS BIGINT)
           AND state = 'running' {share})
       THEN CAST(:thread_id AS TEXT) ELSE CAST({refuse} AS TEXT) END,
       CAST(:ns AS TEXT), CAST(:checkpoint_id AS TEXT), CAST(:task_id AS TEXT),
       CAST(:stamp AS BIGINT), CAST(:refs AS TEXT), CAST(:body AS {blob})
WHERE TRUE
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
-- The rows of a chain up to one of them, which :from may be, too: then it is that row alone.
SELECT channel, chain, seq, step, body FROM perdure_values
WHERE thread_id = :thread_id AND ns = :ns AND channel = :channel AND chain = :chain
  AND seq <= :seq AND seq >= :from AND (:from < 0 OR step = :step);

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

-- name: threads_of_run
-- The threads in which a run made checkpoints; NULL: all threads.
SELECT DISTINCT thread_id FROM perdure_checkpoints
WHERE CAST(:run_id AS TEXT) IS NULL OR run_id = :run_id ORDER BY thread_id;

-- name: delete_writes
-- Deletes the writes of one checkpoint.
DELETE FROM perdure_writes
WHERE thread_id = :thread_id AND ns = :ns AND checkpoint_id = :id;

-- name: delete_checkpoint
-- Deletes one checkpoint.
DELETE FROM perdure_checkpoints WHERE thread_id = :thread_id AND ns = :ns AND id = :id;

-- name: value_keys
-- Each value row of a thread, and the row it is based on.
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

-- name: delete_state
-- The checkpoints of a thread, all at once: it must not be seen, or gone on from, in an older state. With :only
-- `alone`, if it has no other run than the ended one that is deleted; `no runs`, if it has none.
DELETE FROM perdure_checkpoints WHERE thread_id = :thread_id AND {is_deletable};

-- name: delete_state_{table}
-- for writes (ns, checkpoint_id, task_id, stamp), values (ns, channel, chain, seq, step)
-- Up to :count rows of a thread that has no checkpoints left.
DELETE FROM perdure_{table}
WHERE thread_id = :thread_id AND {key} IN (
    SELECT {columns} FROM perdure_{table} WHERE thread_id = :thread_id LIMIT :count)
  AND {no_checkpoints} AND {is_deletable};

-- name: delete_effects
-- Up to :count effects of a thread that has no checkpoints left; or, without a runtime, of tasks whose checkpoint is
-- gone, and that cannot run again (:old). Those with a business key are kept: they still prevent a second call.
DELETE FROM perdure_effects
WHERE scope = :thread_id AND (task, name, n) IN (
    SELECT task, name, n FROM perdure_effects
    WHERE scope = :thread_id AND (:old = 0 OR {old_effect}) LIMIT :count)
  AND (:old = 1 OR {no_checkpoints});

-- name: is_thread_left
-- 1: rows are left of a thread that is being deleted, or effects that are to be deleted.
SELECT CASE WHEN :old = 0 AND (
         EXISTS (SELECT 1 FROM perdure_checkpoints WHERE thread_id = :thread_id)
         OR EXISTS (SELECT 1 FROM perdure_writes WHERE thread_id = :thread_id)
         OR EXISTS (SELECT 1 FROM perdure_values WHERE thread_id = :thread_id))
       OR EXISTS (SELECT 1 FROM perdure_effects WHERE scope = :thread_id AND (:old = 0 OR {old_effect}))
       THEN 1 ELSE 0 END;

-- name: all_values
-- The values of a thread, for copying it.
SELECT ns, channel, chain, seq, step, base, body FROM perdure_values
WHERE thread_id = :thread_id;

-- name: all_writes
SELECT ns, checkpoint_id, task_id, stamp, refs, body FROM perdure_writes
WHERE thread_id = :thread_id;

-- name: journal_time
-- The time of the database, in milliseconds since 1970.
SELECT {clock};

-- name: allocate_run_number
-- The number of the next run, and the lock on the order of the thread's runs. One statement: a thread that
-- is erased meanwhile is a new one. Its graph is that of its first run.
INSERT INTO perdure_threads (thread_id, runs, graph, created_at, updated_at, change)
VALUES (:thread_id, 1, :graph, :now, :now, 0)
ON CONFLICT (thread_id) DO UPDATE
SET runs = perdure_threads.runs + 1, graph = COALESCE(perdure_threads.graph, excluded.graph),
    updated_at = excluded.updated_at, has_next = 0;

-- name: lock_thread
-- Taken before anything that changes which run of a thread is next.
SELECT runs FROM perdure_threads WHERE thread_id = :thread_id {lock};

-- name: lock_run
-- Taken before its waits, so that all take them in one order.
SELECT state FROM perdure_runs WHERE thread_id = :thread_id AND id = :id {lock};

-- name: insert_run
-- Accepts a run. It is due only if no other run of its thread is under way; with :reject it is
-- then not accepted. A run with the same key is accepted once. The child of a run that is being
-- cancelled is to be cancelled too.
INSERT INTO perdure_runs
  (thread_id, id, n, graph, version, key, state, due_at, ready_at, token, attempts, begun, poked,
   undo, events, change, created_at, updated_at, fingerprint, setup, webhook, parent_id, depth, ignores_parent_cancel,
   streams,
   control, reason)
SELECT t.thread_id, CAST(:id AS TEXT), t.runs, CAST(:graph AS TEXT), CAST(:version AS TEXT),
       CAST(:key AS TEXT), 'pending',
       CASE WHEN NOT EXISTS (SELECT 1 FROM perdure_runs AS r
                             WHERE r.thread_id = :thread_id AND r.state NOT IN {ended})
            THEN CAST(:due_at AS BIGINT) END,
       CAST(:ready_at AS BIGINT), 0, 0, CAST(:begun AS INTEGER), 0, 0, 1, CAST(:change AS BIGINT),
       CAST(:now AS BIGINT), CAST(:now AS BIGINT), CAST(:fingerprint AS TEXT), CAST(:setup AS {blob}),
       CAST(:webhook AS TEXT), CAST(:parent_id AS TEXT), CAST(:depth AS BIGINT),
       CAST(:ignores_parent_cancel AS BIGINT), CAST(:streams AS INTEGER),
       (SELECT 'cancel' FROM perdure_runs AS p
        WHERE p.id = CAST(:parent_id AS TEXT) AND p.control = 'cancel' AND :ignores_parent_cancel = 0),
       (SELECT CAST(:parent_reason AS TEXT) FROM perdure_runs AS p
        WHERE p.id = CAST(:parent_id AS TEXT) AND p.control = 'cancel' AND :ignores_parent_cancel = 0)
FROM perdure_threads AS t
WHERE t.thread_id = :thread_id
  AND (:reject = 0 OR NOT EXISTS (SELECT 1 FROM perdure_runs AS r
                                  WHERE r.thread_id = :thread_id AND r.state NOT IN {ended}))
ON CONFLICT DO NOTHING;

-- name: find_run
-- A run by its id or its key.
SELECT {run} FROM perdure_runs WHERE thread_id = :thread_id AND (id = :id OR key = :key);

-- name: run_by_id
SELECT {run} FROM perdure_runs WHERE id = :id;

-- name: head_of_thread
-- The run of a thread that is under way, or next.
SELECT {run} FROM perdure_runs WHERE thread_id = :thread_id AND state NOT IN {ended}
ORDER BY n LIMIT 1;

-- name: children_at_stake
-- How many unfinished runs are cancelled with each of these, their children and theirs.
WITH RECURSIVE tree (root, id) AS (
  SELECT c.parent_id, c.id FROM perdure_runs AS c
  WHERE c.parent_id IN ({names}) AND c.ignores_parent_cancel = 0
  UNION SELECT tree.root, c.id FROM tree JOIN perdure_runs AS c
    ON c.parent_id = tree.id AND c.ignores_parent_cancel = 0)
SELECT tree.root, COUNT(*) FROM tree JOIN perdure_runs AS r ON r.id = tree.id
WHERE r.state NOT IN {ended} GROUP BY tree.root;

-- name: runs_at_stake
-- What these runs were asked to do, and whether a later run of their thread has begun.
SELECT f.id, f.control, EXISTS (
  SELECT 1 FROM perdure_runs AS r
  WHERE r.thread_id = f.thread_id AND r.n > f.n AND (r.begun = 1 OR r.state = 'running'))
FROM perdure_runs AS f WHERE f.id IN ({names});

-- name: runs_ahead
-- Of these runs: what each was asked to do, how often its worker was lost, and the first unfinished run of its thread.
SELECT r.id, r.control, r.recoveries, (
  SELECT h.id FROM perdure_runs AS h
  WHERE h.thread_id = r.thread_id AND h.state NOT IN {ended} ORDER BY h.n LIMIT 1)
FROM perdure_runs AS r WHERE r.id IN ({names});

-- name: runs_before
-- Runs older than a position, newest first.
SELECT {run} FROM perdure_runs
WHERE (created_at, id) < (:before, :before_id) AND created_at >= :since
  AND (CAST(:names AS TEXT) IS NULL OR state IN ({names}))
  AND (CAST(:graph AS TEXT) IS NULL OR graph = :graph)
ORDER BY created_at DESC, id DESC LIMIT :count;

-- name: runs_in_state
-- The same in a state other than pending, running and done.
SELECT {run} FROM perdure_runs
WHERE state = :state AND state NOT IN ('pending', 'running', 'done')
  AND (created_at, id) < (:before, :before_id) AND created_at >= :since
  AND (CAST(:graph AS TEXT) IS NULL OR graph = :graph)
ORDER BY created_at DESC, id DESC LIMIT :count;

-- name: held_runs
-- Held runs behind a position, oldest first.
SELECT {run} FROM perdure_runs
WHERE state = 'held' AND state NOT IN ('pending', 'running', 'done')
  AND (created_at, id) > (:after, :after_id)
ORDER BY created_at, id LIMIT :count;

-- name: running_runs
-- The same for those that are driven, which the index of workers has.
SELECT {run} FROM perdure_runs
WHERE worker IS NOT NULL AND state = 'running'
  AND (+created_at, id) < (:before, :before_id) AND +created_at >= :since
  AND (CAST(:graph AS TEXT) IS NULL OR graph = :graph)
ORDER BY +created_at DESC, id DESC LIMIT :count;

-- name: pending_runs
-- The same for those that are pending: of the unfinished runs, the index has the state.
SELECT {run} FROM perdure_runs
WHERE state = 'pending' AND state NOT IN {ended}
  AND (+created_at, id) < (:before, :before_id) AND +created_at >= :since
  AND (CAST(:graph AS TEXT) IS NULL OR graph = :graph)
ORDER BY +created_at DESC, id DESC LIMIT :count;

-- name: runs_newer
-- Runs newer than a position, oldest first.
SELECT {run} FROM perdure_runs
WHERE (created_at, id) > (:after, :after_id) AND created_at >= :since AND created_at < :until
ORDER BY created_at, id LIMIT :count;

-- name: runs_of_{table}
-- for thread (thread_id), parent (parent_id)
-- As runs_before, of one thread, or the children of one run.
SELECT {run} FROM perdure_runs
WHERE {columns} = :{columns} AND (created_at, id) < (:before, :before_id) AND created_at >= :since
  AND (CAST(:names AS TEXT) IS NULL OR state IN ({names}))
  AND (CAST(:graph AS TEXT) IS NULL OR graph = :graph)
ORDER BY created_at DESC, id DESC LIMIT :count;

-- name: children_of_runs
-- The oldest :most children of each of these runs, at most :count in all, each with whether its parent
-- joined it (1), or still waits for it (2), and with how many children its parent has. A wait that was
-- closed had no answer.
SELECT {run}, (SELECT MAX(CASE w.state WHEN 'open' THEN 2 WHEN 'closed' THEN 0 ELSE 1 END)
               FROM perdure_joins AS j JOIN perdure_waits AS w
                 ON w.thread_id = j.thread_id AND w.id = j.wait_id
                    AND w.run_id = perdure_runs.parent_id
               WHERE j.joined_thread = perdure_runs.thread_id AND j.joined_id = perdure_runs.id),
       siblings
FROM (SELECT child_id, siblings FROM (
        SELECT c.id AS child_id, COUNT(*) OVER (PARTITION BY c.parent_id) AS siblings,
               ROW_NUMBER() OVER (PARTITION BY c.parent_id ORDER BY c.created_at, c.id) AS place
        FROM perdure_runs AS c WHERE c.parent_id IN ({names})) AS every_child
      WHERE place <= :most ORDER BY place, child_id LIMIT :count) AS chosen
JOIN perdure_runs ON perdure_runs.id = chosen.child_id
ORDER BY created_at, id;

-- name: runs_by_ids
SELECT {run} FROM perdure_runs WHERE id IN ({names});

-- name: ids_of_prefix
-- Runs, waits or effects whose ids begin with a prefix: a few, so that an ambiguous prefix shows.
SELECT id, what, thread_id FROM (
  SELECT * FROM (SELECT id, state || ' run of ' || graph AS what, thread_id FROM perdure_runs
                 WHERE :table = 'runs' AND id >= :first AND id < :last ORDER BY id LIMIT 6) AS r
  UNION ALL
  SELECT * FROM (SELECT id, state || ' wait for a ' || kind, thread_id FROM perdure_waits
                 WHERE :table = 'waits' AND id >= :first AND id < :last ORDER BY id LIMIT 6) AS w
  UNION ALL
  SELECT * FROM (SELECT DISTINCT key, state || ' effect ' || name, thread_id FROM perdure_effects
                 WHERE :table = 'effects' AND key >= :first AND key < :last ORDER BY key LIMIT 6) AS e
) AS ids ORDER BY id;

-- name: unfinished_runs
-- Runs that are not over, of graphs whose names are in a range, behind a position, oldest first.
SELECT {run} FROM perdure_runs
WHERE (created_at, id) > (:after, :after_id) AND state NOT IN {ended}
  AND graph >= :first AND graph < :last
ORDER BY created_at, id LIMIT :count;

-- name: unfinished_of_threads
-- The runs that are not over of threads whose ids are in a range, behind a position.
SELECT thread_id, n, id, graph, state FROM perdure_runs
WHERE (thread_id, n) > (:after, :after_n) AND thread_id < :last AND state NOT IN {ended}
ORDER BY thread_id, n LIMIT :count;

-- name: last_runs_of_threads
-- The runs of threads whose ids are in a range, from its end.
SELECT {run} FROM perdure_runs WHERE thread_id >= :first AND thread_id < :last
ORDER BY thread_id DESC, n DESC LIMIT :count;

-- name: graphs_in_use
-- The graphs that unfinished runs were last driven with.
SELECT graph, version, fingerprint, COUNT(*) FROM perdure_runs WHERE state NOT IN {ended}
GROUP BY graph, version, fingerprint ORDER BY graph, version, fingerprint;

-- name: runs_last_driven_with
-- Unfinished runs that were last driven with one graph, after an id.
SELECT {run} FROM perdure_runs
WHERE id > :after AND graph = :graph AND version = :version AND fingerprint = :fingerprint
  AND state NOT IN {ended}
ORDER BY id LIMIT :count;

-- name: stop_thread
-- A new run takes the thread over, unless it is one that was accepted before: the driven run
-- is asked to stop, the others end, and those with effects to undo as soon as that is done. With
-- :only, just the runs in that state; `idle` are all that are held, or neither driven nor in the
-- middle of their effects; `asking` those that rest until a person answers. With :alone, none if
-- others are under way too.
UPDATE perdure_runs
SET due_at = CASE WHEN state = 'running' THEN due_at WHEN {undo} THEN CAST(:now AS BIGINT) END,
    control = 'cancel', control_at = COALESCE(control_at, :control_at), undo = :undo,
    reason = :reason,
    state = CASE WHEN state = 'running' THEN state WHEN {undo} THEN 'pending' ELSE 'cancelled' END,
    events = events + 1, change = :change, stop_change = :change, updated_at = :now
WHERE thread_id = :thread_id AND state NOT IN {ended}
  AND (CAST(:only AS TEXT) IS NULL OR state = :only AND COALESCE(due_at, :now + 1) > :now
       OR :only = 'idle' AND (state = 'held' OR state <> 'running' AND NOT EXISTS (
         SELECT 1 FROM perdure_effects AS e
         WHERE e.run_id = perdure_runs.id AND e.run_id <> ''))
       OR :only = 'asking' AND state = 'waiting' AND COALESCE(due_at, :now + 1) > :now AND EXISTS (
         SELECT 1 FROM perdure_waits AS w
         WHERE w.run_id = perdure_runs.id AND w.state = 'open' AND w.kind = 'human'))
  AND (:alone = 0 OR NOT EXISTS (SELECT 1 FROM perdure_runs AS r
                                 WHERE r.thread_id = :thread_id AND r.state NOT IN {ended}
                                   AND r.id <> perdure_runs.id))
  AND NOT EXISTS (SELECT 1 FROM perdure_runs AS r
                  WHERE r.thread_id = :thread_id AND r.key = CAST(:key AS TEXT));

-- name: refuse_waiting
-- Refuses the batch if the run that is first on the thread waits: the new one may have to end it.
INSERT INTO perdure_entries (name)
SELECT {refuse} WHERE 'waiting' = (SELECT state FROM perdure_runs
                               WHERE thread_id = :thread_id AND state NOT IN {ended}
                               ORDER BY n LIMIT 1);

-- name: stop_run
-- Cancels or pauses a run: at once, or through a request to its driver. One that is held, or being cancelled,
-- is not paused. One with effects to undo is cancelled at its next claim.
UPDATE perdure_runs
SET due_at = CASE WHEN state = 'running' THEN due_at
                  WHEN :control = 'cancel' AND {undo} THEN CAST(:now AS BIGINT) END,
    control = CASE WHEN state = 'running' OR (:control = 'cancel' AND {undo})
              THEN CAST(:control AS TEXT) END,
    control_at = CASE WHEN state = 'running' THEN CAST(:control_at AS BIGINT) END,
    reason = COALESCE(CAST(:reason AS TEXT), reason),
    undo = CASE WHEN :undo = 1 THEN 1 ELSE undo END,
    state = CASE WHEN state = 'running' THEN state
                 WHEN :control = 'cancel' AND {undo} THEN 'pending'
                 ELSE CAST(:state AS TEXT) END,
    events = events + 1, change = :change, updated_at = :now
WHERE thread_id = :thread_id AND id = :id AND state NOT IN {ended} AND state <> :state
  AND NOT (:control = 'pause' AND (state = 'held' OR COALESCE(control, '') = 'cancel'))
RETURNING id;

-- name: stop_descendants
-- Cancels the children of the runs that change :by cancelled, and theirs: those that are driven are
-- asked, the others end at their next claim.
UPDATE perdure_runs
SET due_at = CASE WHEN state = 'running' OR (state = 'pending' AND due_at IS NULL) THEN due_at
                  ELSE CAST(:now AS BIGINT) END,
    control_at = CASE WHEN state = 'running' THEN CAST(:control_at AS BIGINT) END,
    state = CASE WHEN state = 'running' THEN state ELSE 'pending' END,
    control = 'cancel', reason = :reason, events = events + 1, change = :change, updated_at = :now
WHERE id IN ({descendants}) AND state NOT IN {ended} AND COALESCE(control, '') <> 'cancel';

-- name: insert_descendant_events
-- The same for their history.
INSERT INTO perdure_events (thread_id, run_id, n, at, kind, change, body)
SELECT thread_id, id, events, CAST(:now AS BIGINT), CAST(:kind AS TEXT), CAST(:change AS BIGINT),
       CAST(:body AS {blob})
FROM perdure_runs WHERE change = :change AND id IN ({descendants})
ON CONFLICT DO NOTHING
{returning_event};

-- name: descendants
-- Those runs, if the reply that had their events was lost.
SELECT thread_id, id FROM perdure_runs WHERE change = :change AND id IN ({descendants});

-- name: continue_run
-- Makes a run that rests due again, if it is its turn: after resume, or retry. After a decision about
-- an effect (:decision) only if that was made, and no other effect of the run is unknown.
UPDATE perdure_runs
SET state = 'pending', attempts = 0, reason = NULL, error = NULL, output = NULL,
    control = CASE WHEN state = 'held' THEN control END,
    due_at = CASE WHEN n = (SELECT min(r.n) FROM perdure_runs AS r
                            WHERE r.thread_id = :thread_id
                              AND (r.id = :id OR r.state NOT IN {ended}))
             THEN CASE WHEN begun = 0 AND ready_at > :now THEN ready_at
                       ELSE CAST(:now AS BIGINT) END END,
    events = events + 1, change = :change, updated_at = :now
WHERE thread_id = :thread_id AND id = :id AND state IN ({names})
  AND (state NOT IN {ended} OR NOT EXISTS (
    SELECT 1 FROM perdure_runs AS r
    WHERE r.thread_id = :thread_id AND (r.begun = 1 OR r.state = 'running')
      AND r.n > (SELECT n FROM perdure_runs WHERE thread_id = :thread_id AND id = :id)))
  AND (CAST(:decision AS BIGINT) IS NULL
       OR change = CAST(:decision AS BIGINT) AND NOT EXISTS (
         SELECT 1 FROM perdure_effects AS e
         WHERE e.run_id = :id AND e.run_id <> '' AND e.state = 'unknown'))
RETURNING id;

-- name: unpause
-- A run that was to pause at its next step does not.
UPDATE perdure_runs
SET control = NULL, control_at = NULL, events = events + 1, change = :change, updated_at = :now
WHERE thread_id = :thread_id AND id = :id AND state = 'running' AND control = 'pause'
RETURNING id;

-- name: requeue_later
-- Runs that have not begun wait again for the one before them.
UPDATE perdure_runs SET due_at = NULL
WHERE thread_id = :thread_id AND state = 'pending' AND due_at IS NOT NULL
  AND n > (SELECT min(r.n) FROM perdure_runs AS r
           WHERE r.thread_id = :thread_id AND r.state NOT IN {ended});

-- name: lock_runs
-- Locks the unfinished runs of a thread.
SELECT id FROM perdure_runs WHERE thread_id = :thread_id AND state NOT IN {ended} {lock};

-- name: insert_event
-- Adds the event of a change to the history of the run that was changed, or does nothing when
-- the change was not made. Like all that add events, it returns what observers get. Of a segment that ended
-- it is :kind if the run is in :state, and not if a request to stop came meanwhile.
INSERT INTO perdure_events (thread_id, run_id, n, at, kind, change, body)
SELECT thread_id, id, events, CAST(:now AS BIGINT),
       CASE WHEN CAST(:state AS TEXT) IS NULL OR state = :state THEN CAST(:kind AS TEXT)
            WHEN state = 'pending' THEN 'released' ELSE state END,
       CAST(:change AS BIGINT), CAST(:body AS {blob})
FROM perdure_runs WHERE thread_id = :thread_id AND id = :id AND change = :change
ON CONFLICT DO NOTHING
{returning_event};

-- name: insert_stop_events
-- The same for a run that is stopped, or, without :id, those whose thread was taken over: :asked for one that is
-- driven, else :kind.
INSERT INTO perdure_events (thread_id, run_id, n, at, kind, change, body)
SELECT thread_id, id, events, CAST(:now AS BIGINT),
       CASE WHEN state IN ('running', 'pending') THEN CAST(:asked AS TEXT)
            ELSE CAST(:kind AS TEXT) END,
       CAST(:change AS BIGINT), CAST(:body AS {blob})
FROM perdure_runs
WHERE (thread_id = :thread_id AND id = CAST(:id AS TEXT) OR thread_id = :thread_id AND stop_change = :change)
  AND change = :change
ON CONFLICT DO NOTHING
{returning_event};

-- name: insert_claim_events
INSERT INTO perdure_events (thread_id, run_id, n, at, kind, change, body)
SELECT thread_id, id, events, CAST(:now AS BIGINT),
       CASE WHEN was = 'running' THEN 'recovered' ELSE 'claimed' END,
       CAST(:change AS BIGINT), CAST(:body AS {blob})
FROM perdure_runs WHERE worker = :worker AND change = :change
ON CONFLICT DO NOTHING
{returning_event};

-- name: find_event
-- Our own key: was this change made?
SELECT thread_id, run_id, n, at, kind FROM perdure_events
WHERE thread_id = :thread_id AND run_id = :id AND change = :change;

-- name: last_decision
-- What last decided whether a run goes on, before the event of its claim.
SELECT thread_id, run_id, n, at, kind, change, body FROM perdure_events
WHERE thread_id = :thread_id AND run_id = :id AND n < :events
  AND kind NOT IN ('step', 'wait', 'woke', 'expired', 'answer', 'withdrawn', 'signal', 'joined',
                   'effect', 'differs', 'settled', 'scored', 'assigned', 'comment', 'rewound')
ORDER BY n DESC LIMIT 1;

-- name: events_after
-- The events of a run behind a number, or only those of these kinds.
SELECT thread_id, run_id, n, at, kind, change, body FROM perdure_events
WHERE thread_id = :thread_id AND run_id = :id AND n > :after
  AND (CAST(:names AS TEXT) IS NULL OR kind IN ({names})) ORDER BY n LIMIT :count;

-- name: claim
-- Takes the runs that are due, those whose lease ran out among them. The token is the fence. The
-- database's clock may have been set: a lease of this host that holds by the host's own clock is not over.
-- A suspect is one that was left behind twice at the same step: it may have killed its workers,
-- and those it was driven with. It is only taken when asked for. With :only, that run alone.
WITH due AS (
  SELECT id FROM perdure_runs
  WHERE due_at <= :now AND graph || '@' || version IN ({names}) AND NOT {held}
    AND :suspect = CASE WHEN state = 'running' AND attempts >= 2 THEN 1 ELSE 0 END
    AND (CAST(:only AS TEXT) IS NULL OR id = :only)
  ORDER BY due_at LIMIT :count {skip})
UPDATE perdure_runs
SET was = state, state = 'running', token = token + 1, attempts = attempts + 1, poked = 0, {continued},
    worker = :worker, driven = :driven, due_at = :until, lease_until = :lease_until, events = events + 1, change = :change,
    updated_at = :now
WHERE id IN (SELECT id FROM due)
RETURNING {run};

-- name: claim_run
-- Takes one run, due or not, unless it is another's, or not its turn.
UPDATE perdure_runs
SET was = state, state = 'running', token = token + 1, attempts = attempts + 1, poked = 0, {continued},
    worker = :worker, driven = 'call', due_at = :until, lease_until = :lease_until, events = events + 1, change = :change,
    updated_at = :now
WHERE thread_id = :thread_id AND id = :id
  AND (state = 'waiting' OR state = 'pending' AND due_at IS NOT NULL
       OR state = 'running' AND due_at <= :now AND NOT {held})
RETURNING {run};

-- name: claimed
-- Our own key: the runs of one claim, also if they were scored or answered since.
SELECT {run} FROM perdure_runs WHERE worker = :worker AND state = 'running' AND EXISTS (
  SELECT 1 FROM perdure_events AS e
  WHERE e.thread_id = perdure_runs.thread_id AND e.run_id = perdure_runs.id AND e.change = :change);

-- name: claimable
-- The runs that `claim` would take, due after one time and by another.
SELECT due_at, thread_id, id FROM perdure_runs
WHERE due_at > :after AND due_at <= :before AND graph || '@' || version IN ({names}) AND NOT {held}
  AND :suspect = CASE WHEN state = 'running' AND attempts >= 2 THEN 1 ELSE 0 END
ORDER BY due_at LIMIT :count;

-- name: postpone_run
-- A run that cannot be claimed, or whose segment cannot be ended: it does not block the others.
UPDATE perdure_runs SET due_at = :until, reason = :reason
WHERE thread_id = :thread_id AND id = :id AND due_at <= :until;

-- name: next_due
-- When the first run is due, of any graph.
SELECT due_at FROM perdure_runs WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1;

-- name: insert_entry
INSERT INTO perdure_entries (name, body) VALUES (:name, :body) ON CONFLICT DO NOTHING;

-- name: entry
SELECT run_id, body FROM perdure_entries WHERE name = :name;

-- name: take_turn
-- Gives a run its turn, unless another one has it that is driven.
INSERT INTO perdure_entries (name, run_id) VALUES (:name, :run_id)
ON CONFLICT (name) DO UPDATE SET run_id = excluded.run_id
WHERE NOT EXISTS (SELECT 1 FROM perdure_runs AS r WHERE r.id = perdure_entries.run_id
                  AND r.id <> excluded.run_id AND r.state = 'running');

-- name: lock_turn
-- Keeps others from taking a turn until commit.
SELECT run_id FROM perdure_entries WHERE name = :name {lock};

-- name: is_due
-- Whether a graph has a run that was to begin by :before and is due, waits for the clock until :soon
-- at most, or is next in its thread; or one that this worker drives.
SELECT 1 FROM perdure_runs
WHERE worker = :worker AND state = 'running' AND graph = :graph AND ready_at <= :before
UNION ALL
SELECT 1 FROM perdure_runs
WHERE due_at <= :soon AND graph = :graph AND ready_at <= :before
  AND (state = 'waiting' OR state = 'pending' AND due_at <= :now)
UNION ALL
SELECT 1 FROM perdure_runs AS o JOIN perdure_runs AS r
  ON r.thread_id = o.thread_id AND r.state = 'pending' AND r.state NOT IN {ended}
WHERE o.worker IS NOT NULL AND o.state = 'running'
  AND r.graph = :graph AND r.ready_at <= :before AND r.due_at IS NULL
LIMIT 1;

-- name: other_graphs_due
-- Graphs that have due runs, but are not among :names.
SELECT DISTINCT graph, version FROM perdure_runs
WHERE due_at <= :now AND graph || '@' || version NOT IN ({names}) AND NOT {held} LIMIT 10;

-- name: late_graphs
-- Graphs with runs that should have begun by :late, and were never claimed: how many, and when the first of
-- them was accepted.
SELECT graph, version, COUNT(*), MIN(created_at) FROM perdure_runs
WHERE due_at <= :late AND state = 'pending' AND token = 0
GROUP BY graph, version ORDER BY graph, version;

-- name: driven_graphs
-- The graphs of runs that a worker has claimed, among the last :count accepted before a time.
SELECT DISTINCT graph, version FROM (
  SELECT graph, version, token FROM perdure_runs WHERE created_at < :before
  ORDER BY created_at DESC, id DESC LIMIT :count) AS accepted
WHERE token > 0;

-- name: renew
-- Keeps leases. A run that is being written to just now is passed over until the next time.
WITH mine AS (
  SELECT id FROM perdure_runs
  WHERE worker = :worker AND state = 'running' AND id IN ({names}) {skip})
UPDATE perdure_runs SET due_at = :until, lease_until = :lease_until
WHERE id IN (SELECT id FROM mine);

-- name: leases
-- Which leases are ours, and what was asked of them.
SELECT id, token, control, control_at, events FROM perdure_runs
WHERE worker = :worker AND state = 'running';

-- name: leased_workers
-- Workers that hold a lease: how many runs each drives, the first end of a lease by the clock of its host, and
-- the last by the database's.
SELECT worker, COUNT(*), min(COALESCE(lease_until, 0)), max(due_at) FROM perdure_runs
WHERE worker IS NOT NULL GROUP BY worker ORDER BY worker LIMIT :count;

-- name: expire
-- Makes the runs of a dead worker due now; with a :tick, those whose lease is over by that.
UPDATE perdure_runs
SET due_at = CASE WHEN due_at > :now THEN CAST(:now AS BIGINT) ELSE due_at END, lease_until = 0
WHERE worker = :worker AND state = 'running'
  AND (CAST(:tick AS BIGINT) IS NULL OR COALESCE(lease_until, 0) <= :tick);

-- name: revoke_lease
-- Ends the lease of a driver that does not respond, and refuses what it writes from here on.
UPDATE perdure_runs
SET token = token + 1, due_at = :now, lease_until = 0, events = events + 1, change = :change, updated_at = :now
WHERE thread_id = :thread_id AND id = :id AND token = :token AND state = 'running'
RETURNING id;

-- name: fence
-- Refuses the batch unless the lease is still ours.
INSERT INTO perdure_entries (name)
SELECT {refuse} WHERE NOT EXISTS (
  SELECT 1 FROM perdure_runs
  WHERE thread_id = :thread_id AND id = :id AND token = :token AND state = 'running' {share});

-- name: progress
-- Counts a step, and refuses the batch unless the lease is still ours.
UPDATE perdure_runs
SET token = CASE WHEN token = :token AND state = 'running' THEN token ELSE {refuse} END,
    attempts = 1, begun = 1, events = events + 1, change = :change, updated_at = :now,
    fingerprint = COALESCE(CAST(:fingerprint AS TEXT), fingerprint),
    labels = COALESCE(CAST(:labels AS {blob}), labels),
    streamed = COALESCE(CAST(:streamed AS TEXT), streamed),
    steps = steps + :steps, model_calls = model_calls + :model_calls
WHERE thread_id = :thread_id AND id = :id;

-- name: consume_and_close_waits
-- Before a driver rests: answers that were handed over, and with which the tasks went on (:consumes), are used;
-- questions that it did not ask again (:closes) are closed, as the graph is elsewhere now.
UPDATE perdure_waits SET state = CASE WHEN state = 'open' THEN 'closed' ELSE 'consumed' END
WHERE run_id = :id
  AND (:consumes = 1 AND state = 'applied' OR :closes = 1 AND state = 'open' AND token <> :token)
  AND EXISTS (SELECT 1 FROM perdure_runs WHERE thread_id = :thread_id AND id = :id
                AND token = :token AND state = 'running');

-- name: end_segment
-- Ends a segment. A request to stop that arrived meanwhile wins; a pause that was withdrawn is ignored.
-- A waiting run is due at its next clock, or now if an answer or a signal arrived while it was driven, or
-- the runs it waits for have ended. A cancelled run with effects to undo is due at once, and still to be
-- cancelled, unless it is held. A run to be held for its effects (:held) is due at once if a person
-- settled the last of them meanwhile.
UPDATE perdure_runs
SET state = CASE WHEN {cancels} OR {released} THEN 'pending'
                 WHEN CAST(:state AS TEXT) = 'held' AND control = 'cancel' AND {undo} THEN 'held'
                 WHEN CAST(:state AS TEXT) IN {ended} THEN CAST(:state AS TEXT)
                 WHEN control = 'cancel' THEN 'cancelled' WHEN control = 'pause' THEN 'paused'
                 WHEN CAST(:state AS TEXT) = 'paused' THEN 'pending' ELSE CAST(:state AS TEXT) END,
    due_at = CASE
      WHEN {cancels} OR {released} THEN COALESCE(CAST(:due_at AS BIGINT), CAST(:now AS BIGINT))
      WHEN CAST(:state AS TEXT) IN {ended} OR control IS NOT NULL THEN NULL
      WHEN CAST(:state AS TEXT) <> 'waiting' THEN CAST(:due_at AS BIGINT)
      WHEN poked = 1 OR EXISTS (
        SELECT 1 FROM perdure_waits AS w JOIN perdure_signals AS s
          ON s.thread_id = w.thread_id AND s.name = w.name AND s.wait_id IS NULL
        WHERE w.run_id = :id AND w.state = 'open' AND w.kind <> 'clock')
        OR EXISTS (SELECT 1 FROM perdure_waits AS w
                   WHERE w.run_id = :id AND w.state = 'open' AND {joined}) THEN CAST(:now AS BIGINT)
      ELSE (SELECT min(COALESCE(w.wake_at, w.expires_at)) FROM perdure_waits AS w
            WHERE w.run_id = :id AND w.state = 'open') END,
    worker = NULL, control_at = NULL, attempts = :attempts,
    control = CASE WHEN {cancels} OR (CAST(:state AS TEXT) = 'held' AND control = 'cancel' AND {undo})
              THEN 'cancel' END,
    output = CAST(:output AS {blob}), error = CAST(:error AS {blob}),
    reason = COALESCE(CASE WHEN NOT {released} THEN CAST(:reason AS TEXT) END,
                      CASE WHEN control IS NOT NULL THEN reason END),
    events = events + 1, change = :change, updated_at = :now
WHERE thread_id = :thread_id AND id = :id AND token = :token AND state = 'running'
RETURNING state;

-- name: close_waits
-- Closes the open waits of a run that ended.
UPDATE perdure_waits SET state = 'closed'
WHERE thread_id = :thread_id AND state = 'open' AND EXISTS (
  SELECT 1 FROM perdure_runs AS r
  WHERE r.thread_id = :thread_id AND r.id = perdure_waits.run_id AND r.state IN {ended});

-- name: make_next_due
-- Lets the next run of a thread be due, when it is its turn.
UPDATE perdure_runs SET due_at = CASE WHEN ready_at > :now THEN ready_at ELSE :now END
WHERE thread_id = :thread_id AND state = 'pending' AND due_at IS NULL
  AND n = (SELECT min(r.n) FROM perdure_runs AS r
           WHERE r.thread_id = :thread_id AND r.state NOT IN {ended});

-- name: reserve_run
-- Its caller still waits for its turn: until then no worker takes it.
UPDATE perdure_runs SET ready_at = :until
WHERE thread_id = :thread_id AND id = :id AND state = 'pending' AND due_at IS NULL;

-- name: withdraw_run
-- Ends a run that only its call would drive: with the call, which runs in :worker and may have claimed it, or
-- without :worker when the call has reserved it no longer. What was begun goes on.
UPDATE perdure_runs
SET state = 'cancelled', due_at = NULL, worker = NULL, control = NULL, control_at = NULL, reason = :reason,
    events = events + 1, change = :change, updated_at = :now
WHERE thread_id = :thread_id AND id = :id AND begun = 0
  AND (token = 0 AND state = 'pending' AND (CAST(:worker AS TEXT) IS NOT NULL OR due_at <= :now)
       OR token = 0 AND state = 'paused' AND CAST(:worker AS TEXT) IS NOT NULL
       OR token = 1 AND state = 'running' AND worker = CAST(:worker AS TEXT))
RETURNING id;

-- name: runs_to_roll_back
-- Runs of a thread whose checkpoints are to be deleted before the next one begins.
SELECT id FROM perdure_runs WHERE thread_id = :thread_id AND undo = 1 AND state IN {ended};

-- name: note_rolled_back
UPDATE perdure_runs SET undo = 2 WHERE thread_id = :thread_id AND id = :id AND undo = 1;

-- name: record_wait
-- Counts the event of a new question, and marks the run as begun: one without input may ask before its
-- first checkpoint.
UPDATE perdure_runs SET begun = 1, events = events + 1, change = :change, updated_at = :now,
    fingerprint = COALESCE(fingerprint, CAST(:fingerprint AS TEXT))
WHERE thread_id = :thread_id AND id = :id
  AND NOT EXISTS (SELECT 1 FROM perdure_waits WHERE thread_id = :thread_id AND id = :wait_id);

-- name: insert_wait
-- Stores a question, or that it was asked again. If another task took its answer (:reopens), it is open.
INSERT INTO perdure_waits
  (thread_id, id, run_id, kind, name, state, interrupt_id, ns, checkpoint_id, task_id, path, stamp,
   token, wake_at, expires_at, created_at, body, seal, graph)
VALUES (:thread_id, :wait_id, :id, :kind, :name, 'open', :interrupt_id, :ns, :checkpoint_id,
        :task_id, :path, :stamp, :token, :wake_at, :expires_at, :now, :body, :seal,
        (SELECT r.graph FROM perdure_runs AS r WHERE r.thread_id = :thread_id AND r.id = :id))
ON CONFLICT (thread_id, id) DO UPDATE
SET state = CASE WHEN perdure_waits.state = 'closed' OR perdure_waits.state = 'applied' AND :reopens = 1
            THEN 'open' ELSE perdure_waits.state END,
    ns = excluded.ns, checkpoint_id = excluded.checkpoint_id, task_id = excluded.task_id,
    path = excluded.path, stamp = excluded.stamp, token = excluded.token, seal = excluded.seal;

-- name: close_replaced_wait
-- The same question with another value: what was shown before can no longer be answered, and an
-- answer to it that was not handed over yet is not one to this.
UPDATE perdure_waits SET state = 'closed'
WHERE thread_id = :thread_id AND run_id = :id AND interrupt_id = :interrupt_id
  AND id <> :wait_id AND state IN ('open', 'answered');

-- name: insert_join
-- One of the runs that a question waits for. It is kept from ending until this is committed: either
-- its end finds the question, or the end of our segment finds that it has ended.
INSERT INTO perdure_joins (thread_id, wait_id, joined_thread, joined_id)
SELECT CAST(:thread_id AS TEXT), CAST(:wait_id AS TEXT), r.thread_id, r.id
FROM perdure_runs AS r WHERE r.id = :joined {share}
ON CONFLICT DO NOTHING;

-- name: lock_joiners
-- Runs that wait for one of this thread. Two runs that end at once pass here one after the other,
-- and the second sees that the first has ended.
SELECT id FROM perdure_runs WHERE id IN (
  SELECT w.run_id FROM perdure_joins AS j
  JOIN perdure_waits AS w ON w.thread_id = j.thread_id AND w.id = j.wait_id AND w.state = 'open'
  WHERE j.joined_thread = :thread_id) {lock};

-- name: wake_joiners
-- Runs of this thread may have ended: a run that waits for nothing else is due, one that is driven is
-- not to rest.
UPDATE perdure_runs
SET poked = 1,
    due_at = CASE WHEN state = 'waiting' AND COALESCE(due_at, :now) >= :now THEN :now
             ELSE due_at END
WHERE state IN ('waiting', 'running') AND id IN (
  SELECT w.run_id FROM perdure_joins AS j
  JOIN perdure_waits AS w ON w.thread_id = j.thread_id AND w.id = j.wait_id AND w.state = 'open'
  WHERE j.joined_thread = :thread_id AND {joined});

-- name: reopen_joins
-- A person tries a run again: the runs it waited for that were not done are looked at again.
UPDATE perdure_waits SET state = 'open', answer = NULL
WHERE run_id = :id AND kind = 'run' AND state IN ('answered', 'applied')
  AND answered_by = 'failed run' AND EXISTS (
    SELECT 1 FROM perdure_runs WHERE thread_id = :thread_id AND id = :id AND change = :change);

-- name: waits_by_ids
SELECT {wait} FROM perdure_waits WHERE id IN ({names});

-- name: waits_of_run
SELECT {wait} FROM perdure_waits WHERE run_id = :id ORDER BY created_at, id;

-- name: waits_of_runs
-- The first :most open waits of each of these runs, those for people first, each with how many its run has.
SELECT {wait}, total
FROM (SELECT thread_id AS of_thread, id AS wait_id, COUNT(*) OVER (PARTITION BY run_id) AS total,
             ROW_NUMBER() OVER (PARTITION BY run_id ORDER BY
               CASE kind WHEN 'human' THEN 0 WHEN 'signal' THEN 1 WHEN 'run' THEN 2 ELSE 3 END,
               CASE WHEN expires_at IS NULL THEN 1 ELSE 0 END, expires_at, created_at, id) AS place
      FROM perdure_waits WHERE run_id IN ({names}) AND state = 'open') AS every_wait
JOIN perdure_waits ON thread_id = of_thread AND id = wait_id
WHERE place <= :most ORDER BY run_id, place;

-- name: open_waits
-- Open waits of a kind behind a position, oldest first. A list of all kinds is made of one for each.
SELECT {wait} FROM perdure_waits
WHERE state = 'open' AND kind = :kind AND (created_at, id) > (:after, :after_id)
ORDER BY created_at, id LIMIT :count;

-- name: open_waits_of_thread
SELECT {wait} FROM perdure_waits
WHERE thread_id = :thread_id AND state = 'open' AND (+created_at, id) > (:after, :after_id)
  AND (CAST(:kind AS TEXT) IS NULL OR kind = :kind)
  AND (CAST(:graph AS TEXT) IS NULL OR graph = :graph)
  AND (CAST(:assignee AS TEXT) IS NULL OR COALESCE(assignee, '') = :assignee)
ORDER BY +created_at, id LIMIT :count;

-- name: questions_of_graph
-- Open questions to people of a graph; with an :assignee, only those of that person, or unassigned ones.
SELECT {wait} FROM perdure_waits
WHERE state = 'open' AND kind = 'human' AND graph = :graph AND (created_at, id) > (:after, :after_id)
  AND (CAST(:assignee AS TEXT) IS NULL OR COALESCE(assignee, '') = :assignee)
ORDER BY created_at, id LIMIT :count;

-- name: questions_of_assignee
-- Open questions assigned to one person.
SELECT {wait} FROM perdure_waits
WHERE state = 'open' AND kind = 'human' AND assignee = :assignee
  AND (created_at, id) > (:after, :after_id)
  AND (CAST(:graph AS TEXT) IS NULL OR graph = :graph)
ORDER BY created_at, id LIMIT :count;

-- name: unassigned_questions
SELECT {wait} FROM perdure_waits
WHERE state = 'open' AND kind = 'human' AND assignee IS NULL
  AND (created_at, id) > (:after, :after_id)
ORDER BY created_at, id LIMIT :count;

-- name: questions_by_expiry
-- Open questions that expire, the next one first.
SELECT {wait} FROM perdure_waits
WHERE state = 'open' AND kind = 'human' AND expires_at IS NOT NULL
  AND (expires_at, id) > (:after, :after_id)
ORDER BY expires_at, id LIMIT :count;

-- name: assign_wait
-- Assigns an open question to a person, or unassigns it (:to is NULL), if it is unassigned or its assignee is
-- :by or :expected. The same again changes nothing.
UPDATE perdure_waits SET assignee = CAST(:to AS TEXT), change = :change
WHERE thread_id = :thread_id AND id = :wait_id AND state = 'open' AND kind = 'human'
  AND (expires_at IS NULL OR expires_at > :now)
  AND COALESCE(assignee, '') <> COALESCE(CAST(:to AS TEXT), '')
  AND (assignee IS NULL OR assignee = CAST(:by AS TEXT) OR assignee = CAST(:expected AS TEXT))
RETURNING id;

-- name: record_note
-- Counts the event of a comment, or of a score (:name, :about) that was stored. It changes nothing else of its
-- run: not when that was last updated, nor whether it is due.
UPDATE perdure_runs SET events = events + 1, change = :change
WHERE thread_id = :thread_id AND id = :id AND change <> :change
  AND (CAST(:name AS TEXT) IS NULL OR EXISTS (
    SELECT 1 FROM perdure_scores
    WHERE thread_id = :thread_id AND run_id = :id AND name = :name AND about = CAST(:about AS TEXT)
      AND change = :change));

-- name: answer_wait
-- Accepts an answer, once, in time, for a run that has not ended, unless the signal is there that
-- takes the question back. With :last_answered only if the last answer, since withdrawn, was given then (0: never).
UPDATE perdure_waits
SET state = 'answered', answer = :answer, answered_at = :answered_at, answered_by = :by, change = :change
WHERE thread_id = :thread_id AND id = :wait_id AND state = 'open'
  AND (expires_at IS NULL OR expires_at > :now)
  AND (CAST(:last_answered AS BIGINT) IS NULL OR COALESCE(answered_at, 0) = :last_answered)
  AND NOT EXISTS (SELECT 1 FROM perdure_signals AS s
                  WHERE s.thread_id = :thread_id AND s.name = perdure_waits.name
                    AND s.wait_id IS NULL)
RETURNING id;

-- name: refuse_unanswered
-- Refuses the batch unless it answered the question and, if it replaces the setup of the run (:seen), the
-- run rests and still has that setup.
INSERT INTO perdure_entries (name)
SELECT {refuse} WHERE NOT EXISTS (
  SELECT 1 FROM perdure_waits AS w JOIN perdure_runs AS r ON r.thread_id = w.thread_id AND r.id = w.run_id
  WHERE w.thread_id = :thread_id AND w.id = :wait_id AND w.change = :change
    AND (CAST(:seen AS {blob}) IS NULL
         OR r.state = 'waiting' AND r.setup = CAST(:seen AS {blob})));

-- name: set_setup
-- Stores what a run is to be continued with.
UPDATE perdure_runs
SET setup = :setup, streams = COALESCE(CAST(:streams AS INTEGER), streams),
    webhook = COALESCE(CAST(:webhook AS TEXT), webhook)
WHERE thread_id = :thread_id AND id = :id;

-- name: withdraw_wait
-- Takes an answer back: only that of a person, while its run is not driven, and its task, which is at the
-- last checkpoint then, has not gone on with it. A failed run must be one that can be retried. `answered_at`
-- stays: the task may have the answer, and is not to find it any more.
UPDATE perdure_waits
SET state = 'open', answer = NULL, answered_by = NULL, change = :change
WHERE thread_id = :thread_id AND id = :wait_id AND run_id = :id AND {withdrawable}
RETURNING id;

-- name: answers_of_run
-- The questions of a run to people: whether the answer can be withdrawn now, and the checkpoint of the
-- graph that each was asked at. A subgraph that asks has none of its own there.
SELECT id, CASE WHEN {withdrawable} THEN 1 ELSE 0 END,
       (SELECT MAX(c.id) FROM perdure_checkpoints AS c
        WHERE c.thread_id = perdure_waits.thread_id AND c.ns = '' AND c.id <= perdure_waits.checkpoint_id)
FROM perdure_waits WHERE run_id = :id AND kind = 'human';

-- name: discard_wait
-- Deletes an open question that cannot be read: it is asked again.
DELETE FROM perdure_waits WHERE id = :wait_id AND run_id = :id AND state = 'open';

-- name: ask_again
-- A question of a run cannot be read: the run is due, or is not to rest.
UPDATE perdure_runs
SET poked = 1,
    due_at = CASE WHEN state = 'waiting' AND COALESCE(due_at, :now) >= :now THEN :now
             ELSE due_at END
WHERE thread_id = :thread_id AND id = :id AND state IN ('waiting', 'running');

-- name: answer_by_driver
-- Answers a question for the driver of its run: by the end of the runs it waits for; or, with :timed, by the
-- clock, whose time has come, or in an evaluation by the example.
UPDATE perdure_waits
SET state = 'answered', answer = :answer, answered_at = :now, answered_by = :by, change = :change
WHERE thread_id = :thread_id AND id = :wait_id AND state = 'open'
  AND (:timed = 0 OR COALESCE(wake_at, expires_at) <= :now);

-- name: wake_wait
-- A person ends a sleep before its time.
UPDATE perdure_waits
SET state = 'answered', answer = :answer, answered_at = :now, answered_by = :by, change = :change
WHERE thread_id = :thread_id AND id = :wait_id AND kind = 'clock' AND state = 'open'
RETURNING id;

-- name: record_answer
-- Counts the event of a question that was answered, assigned or withdrawn. With :wakes its run is due, or is not
-- to rest; without :touches it is not updated, as with a score.
UPDATE perdure_runs
SET poked = CASE WHEN :wakes = 1 THEN 1 ELSE poked END,
    due_at = CASE WHEN :wakes = 1 AND state = 'waiting' AND COALESCE(due_at, :now) >= :now THEN :now
             ELSE due_at END,
    updated_at = CASE WHEN :touches = 1 THEN :now ELSE updated_at END,
    events = events + 1, change = :change
WHERE thread_id = :thread_id AND id = :id AND change <> :change AND EXISTS (
  SELECT 1 FROM perdure_waits
  WHERE thread_id = :thread_id AND id = :wait_id AND change = :change);

-- name: apply_wait
UPDATE perdure_waits SET state = 'applied'
WHERE thread_id = :thread_id AND id = :wait_id AND state = 'answered';

-- name: insert_signal
-- Keeps a signal, once per key.
INSERT INTO perdure_signals (thread_id, id, name, key, sent_at, body)
VALUES (:thread_id, :signal_id, :name, :key, :now, :body) ON CONFLICT DO NOTHING;

-- name: find_signal
-- Our own key: was this signal kept?
SELECT id FROM perdure_signals WHERE thread_id = :thread_id AND id = :signal_id;

-- name: wake_thread
-- A signal came: who waits for it is due, who is driven is not to rest.
UPDATE perdure_runs
SET poked = 1, due_at = CASE WHEN state = 'waiting' AND COALESCE(due_at, :now) >= :now AND EXISTS (
      SELECT 1 FROM perdure_waits AS w WHERE w.run_id = perdure_runs.id AND w.state = 'open'
        AND w.name = :name) THEN :now ELSE due_at END
WHERE thread_id = :thread_id AND state IN ('waiting', 'running');

-- name: take_signal
-- Gives the oldest kept signal of a name to a wait that has none.
UPDATE perdure_signals SET wait_id = :wait_id, change = :change
WHERE thread_id = :thread_id AND id = (
    SELECT id FROM perdure_signals
    WHERE thread_id = :thread_id AND name = :name AND wait_id IS NULL
    ORDER BY sent_at, id LIMIT 1)
  AND EXISTS (SELECT 1 FROM perdure_waits
              WHERE thread_id = :thread_id AND id = :wait_id AND state = 'open');

-- name: answer_by_signal
UPDATE perdure_waits
SET state = 'answered', answered_at = :now, answered_by = 'signal', change = :change
WHERE thread_id = :thread_id AND id = :wait_id AND state = 'open' AND EXISTS (
  SELECT 1 FROM perdure_signals
  WHERE thread_id = :thread_id AND wait_id = :wait_id AND change = :change);

-- name: signals_of_run
-- The signals that answered waits of a run.
SELECT s.id, s.wait_id, s.name, s.key, s.sent_at, s.body FROM perdure_signals AS s
WHERE s.thread_id = :thread_id AND s.wait_id IN (
  SELECT id FROM perdure_waits WHERE run_id = :id);

-- name: put_score
-- Stores a score of an existing run. One of the same name and part is replaced if it is still the one that
-- the caller saw (:seen), or whatever it is (NULL).
INSERT INTO perdure_scores
  (thread_id, run_id, name, about, value, at, body, kind, label, target, target_id, change)
SELECT thread_id, id, CAST(:name AS TEXT), CAST(:about AS TEXT), CAST(:value AS DOUBLE PRECISION),
       CAST(:now AS BIGINT), CAST(:body AS {blob}), CAST(:kind AS TEXT), CAST(:label AS TEXT),
       CAST(:target AS TEXT), CAST(:target_id AS TEXT), CAST(:change AS BIGINT)
FROM perdure_runs WHERE thread_id = :thread_id AND id = :id
ON CONFLICT (thread_id, run_id, name, about)
DO UPDATE SET value = excluded.value, at = excluded.at, body = excluded.body, kind = excluded.kind,
    label = excluded.label, target = excluded.target, target_id = excluded.target_id,
    change = excluded.change
WHERE CAST(:seen AS BIGINT) IS NULL OR perdure_scores.change = CAST(:seen AS BIGINT)
RETURNING change;

-- name: scores_of_run
SELECT name, about, value, at, body, kind, label, target, target_id, change FROM perdure_scores
WHERE thread_id = :thread_id AND run_id = :id ORDER BY at, name, about;

-- name: find_score
SELECT name, about, value, at, body, kind, label, target, target_id, change FROM perdure_scores
WHERE thread_id = :thread_id AND run_id = :id AND name = :name AND about = :about;

-- name: reads_of_task
SELECT n, body FROM perdure_reads
WHERE thread_id = :thread_id AND run_id = :id AND task = :task;

-- name: insert_read
INSERT INTO perdure_reads (thread_id, run_id, task, n, body)
VALUES (:thread_id, :id, :task, :n, :body) ON CONFLICT DO NOTHING;

-- name: insert_effect
-- An intent: stored before the call is made, once per place or business key. Of a run, it refuses
-- the batch unless the lease is still ours.
INSERT INTO perdure_effects
  (scope, task, name, n, key, thread_id, run_id, checkpoint_id, state, intent, attempts, digest,
   undo, mark, settled, created_at, updated_at, arguments, unconfirmed)
VALUES (:scope, :task, :name, :n, :key, :thread_id, :run_id, :checkpoint_id,
        CASE WHEN :run_id = '' THEN 'open' ELSE COALESCE((
          SELECT 'open' FROM perdure_runs AS r WHERE r.thread_id = :thread_id AND r.id = :run_id
            AND r.token = :token AND r.state = 'running' {share}), CAST({refuse} AS TEXT)) END,
        :intent, 1, :digest, :undo, :mark, 0, :created_at, :created_at, :arguments, :unconfirmed)
ON CONFLICT DO NOTHING
RETURNING intent;

-- name: fence_intent
-- Refuses the batch unless this intent is stored, and its call has no outcome: another process may have
-- stored its own first, or our own batch may have arrived before.
INSERT INTO perdure_entries (name)
SELECT {refuse} WHERE NOT EXISTS (
  SELECT 1 FROM perdure_effects
  WHERE scope = :scope AND task = :task AND name = :name AND n = :n AND intent = :intent
    AND state = 'open' {lock});

-- name: take_effect
-- Takes an effect for a call, if the row is still as the caller saw it: of two callers, one does. How the
-- last attempt of another run failed is bound to that run, and goes.
UPDATE perdure_effects
SET outcome = CASE WHEN thread_id = :thread_id AND run_id = :run_id THEN outcome END,
    state = 'open', intent = :intent, attempts = :attempts,
    thread_id = :thread_id, run_id = :run_id, due_at = NULL, updated_at = :now
WHERE scope = :scope AND task = :task AND name = :name AND n = :n AND intent = :seen
  AND state IN ('open', 'again');

-- name: effect_at
SELECT {effect} FROM perdure_effects
WHERE scope = :scope AND task = :task AND name = :name AND n = :n;

-- name: find_intent
-- Our own key: is this intent stored, and in :state, if there is one?
SELECT n FROM perdure_effects
WHERE scope = :scope AND task = :task AND name = :name AND n = :n AND intent = :intent
  AND (CAST(:state AS TEXT) IS NULL OR state = :state);

-- name: write_effect
-- Stores the result of a call, if it is still ours: an outcome, or how it goes on.
UPDATE perdure_effects
SET state = :state, outcome = :outcome, attempts = :attempts, due_at = :due_at, mark = :mark,
    updated_at = :now,
    settled = COALESCE((SELECT r.events FROM perdure_runs AS r
                        WHERE r.thread_id = perdure_effects.thread_id
                          AND r.id = perdure_effects.run_id), 0)
WHERE scope = :scope AND task = :task AND name = :name AND n = :n AND intent = :intent
  AND state = 'open'
RETURNING n;

-- name: note_match
-- Notes that a call with other arguments matched this record (:digest); or, with :unconfirmed, that it was called with
-- the right ones, or a person is asked about it.
UPDATE perdure_effects
SET provisional_digests = provisional_digests || :digest,
    unconfirmed = COALESCE(CAST(:unconfirmed AS INTEGER), unconfirmed)
WHERE scope = :scope AND task = :task AND name = :name AND n = :n;

-- name: raise_min_equal
-- A call matched the record of another: from now on so many arguments must be equal.
UPDATE perdure_effects SET min_equal = :min_equal
WHERE scope = :scope AND task = :task AND name = :name AND min_equal < :min_equal;

-- name: abandon_effects
-- Marks open effects whose run will not come back to them: a person has to settle them.
UPDATE perdure_effects SET state = 'unknown', updated_at = :now
WHERE run_id = :id AND run_id <> '' AND state = 'open' AND mark <> 1;

-- name: record_effect
-- Counts an event of an effect, and an outcome as progress. Refuses the batch unless the lease is
-- still ours.
UPDATE perdure_runs
SET token = CASE WHEN token = :token AND state = 'running' THEN token ELSE {refuse} END,
    attempts = CASE WHEN :progress = 1 THEN 1 ELSE attempts END,
    events = events + 1, change = :change, updated_at = :now
WHERE thread_id = :thread_id AND id = :id;

-- name: record_saved
-- Counts what was returned from the record.
UPDATE perdure_runs
SET saved_effects = saved_effects + :effects, saved_calls = saved_calls + :model_calls
WHERE thread_id = :thread_id AND id = :id AND token = :token AND state = 'running';

-- name: effects_of_task
SELECT {effect} FROM perdure_effects WHERE scope = :thread_id AND task = :task;

-- name: effect_places
-- The places of a run's effects, and the keys made from them.
SELECT scope, task, name, n, key FROM perdure_effects WHERE run_id = :id AND run_id <> '';

-- name: effect_by_key
-- After an undo, a newer effect may have the same business key.
SELECT {effect} FROM perdure_effects WHERE key = :key
ORDER BY CASE WHEN undo = 2 THEN 1 ELSE 0 END, created_at DESC LIMIT 1;

-- name: effects_of_run
SELECT {effect} FROM perdure_effects WHERE run_id = :id AND run_id <> ''
ORDER BY created_at, settled, key;

-- name: unknown_of_runs
-- The effects of these runs that a person has to settle.
SELECT run_id, name FROM perdure_effects
WHERE run_id IN ({names}) AND run_id <> '' AND state = 'unknown' ORDER BY created_at, key;

-- name: effects_at_stake
-- The effects of these runs that are undone if they are cancelled, called again if they are retried, or have no
-- known outcome.
SELECT run_id, state, name FROM perdure_effects
WHERE run_id IN ({names}) AND run_id <> ''
  AND (state = 'done' AND undo = 1 OR state = 'failed' AND mark <> 2 OR state IN ('open', 'unknown'))
ORDER BY created_at, key;

-- name: effects_by_keys
SELECT {effect} FROM perdure_effects WHERE key IN ({names});

-- name: unknown_effects
-- Effects that a person has to settle, oldest first.
SELECT {effect} FROM perdure_effects
WHERE state = 'unknown' AND (created_at, key) > (:after, :after_key)
ORDER BY created_at, key LIMIT :count;

-- name: effects_after
-- Effects of a thread, or of all, oldest first.
SELECT {effect} FROM perdure_effects
WHERE (created_at, key) > (:after, :after_key)
  AND (CAST(:state AS TEXT) IS NULL OR state = :state)
  AND (CAST(:thread_id AS TEXT) IS NULL OR thread_id = :thread_id)
ORDER BY created_at, key LIMIT :count;

-- name: newest_effects
-- The effects of runs behind a position, newest run first, and of each run the newest first. A run
-- without effects has a row too, so that :count bounds what is read.
SELECT r.created_at, r.id, r.thread_id, r.graph, e.created_at, e.key, e.name, e.state
FROM perdure_runs AS r LEFT JOIN perdure_effects AS e ON e.run_id = r.id AND e.run_id <> ''
  AND ((r.created_at, r.id) < (:before, :before_id) OR (e.created_at, e.key) < (:at, :key))
WHERE (r.created_at, r.id) <= (:before, :before_id)
ORDER BY r.created_at DESC, r.id DESC, e.created_at DESC, e.key DESC LIMIT :count;

-- name: decide_effect
-- Settles an effect as a person said, unless a run is calling it.
UPDATE perdure_effects
SET state = :state, outcome = :outcome, attempts = :attempts, due_at = NULL, intent = :change,
    updated_at = :now, mark = CASE WHEN CAST(:state AS TEXT) = 'failed' THEN 2 ELSE 0 END,
    settled = COALESCE((SELECT r.events + 1 FROM perdure_runs AS r
                        WHERE r.thread_id = perdure_effects.thread_id
                          AND r.id = perdure_effects.run_id), 0)
WHERE key = :key AND thread_id = :thread_id AND run_id = :id
  AND undo <> 2 AND (state = 'unknown' OR state IN ('open', 'failed') AND NOT EXISTS (
  SELECT 1 FROM perdure_runs AS r
  WHERE r.id = perdure_effects.run_id AND r.state = 'running' AND (r.due_at > :now OR {held})))
RETURNING key;

-- name: retry_effects
-- A person tries a run again: what failed for good may be called once more.
UPDATE perdure_effects
SET state = 'again', attempts = 0, due_at = NULL, intent = :change, updated_at = :now
WHERE run_id = :id AND run_id <> '' AND state = 'failed' AND mark <> 2 AND EXISTS (
  SELECT 1 FROM perdure_runs WHERE thread_id = :thread_id AND id = :id AND change = :change);

-- name: record_decision
UPDATE perdure_runs SET events = events + 1, change = :change, updated_at = :now
WHERE thread_id = :thread_id AND id = :id AND EXISTS (
  SELECT 1 FROM perdure_effects WHERE key = :key AND intent = :change);

-- name: find_decision
-- Our own key: was this decision made?
SELECT key FROM perdure_effects WHERE key = :key AND intent = :change;

-- name: note_compensated
-- Its compensation was made. A business key no longer guards.
UPDATE perdure_effects
SET undo = 2, updated_at = :now,
    scope = CASE WHEN task = '' THEN scope || ' undone in run ' || run_id ELSE scope END
WHERE scope = :scope AND task = :task AND name = :name AND n = :n AND undo = 1;

-- name: insert_message
-- A message; one about a question (:wait_id), if that is a new one.
INSERT INTO perdure_outbox
  (thread_id, id, run_id, topic, due_at, attempts, change, sent_at, body)
SELECT CAST(:thread_id AS TEXT), CAST(:message_id AS TEXT), CAST(:id AS TEXT), CAST(:topic AS TEXT),
       CAST(:now AS BIGINT), 0, 0, CAST(:now AS BIGINT), CAST(:body AS {blob})
WHERE CAST(:wait_id AS TEXT) IS NULL OR NOT EXISTS (
  SELECT 1 FROM perdure_waits WHERE thread_id = :thread_id AND id = :wait_id)
ON CONFLICT DO NOTHING;

-- name: announce_state
-- A message about the state in which this change leaves a run: for an endpoint (:topic) that is told of runs in one of
-- these states; or, without one, for the own webhook of each run that it ended, held, or left waiting for a person.
-- Its id is that of the run and the number of the event; what it says is read when it is delivered.
INSERT INTO perdure_outbox
  (thread_id, id, run_id, topic, due_at, attempts, change, sent_at, body)
SELECT thread_id, id || '-' || CAST(events AS TEXT) || CAST(:suffix AS TEXT), id,
       COALESCE(CAST(:topic AS TEXT), webhook), CAST(:now AS BIGINT), 0, 0, CAST(:now AS BIGINT),
       CAST(:empty AS {blob})
FROM perdure_runs
WHERE (thread_id = :thread_id AND id = :id OR thread_id = :thread_id AND stop_change = :change)
  AND change = :change AND (CAST(:topic AS TEXT) IS NOT NULL OR webhook IS NOT NULL)
  AND CASE WHEN CAST(:topic AS TEXT) IS NOT NULL THEN state IN ({names})
      ELSE state IN {ended} OR state = 'held'
           OR state = 'waiting' AND COALESCE(due_at, :now + 1) > :now AND EXISTS (
             SELECT 1 FROM perdure_waits AS w
             WHERE w.run_id = perdure_runs.id AND w.state = 'open' AND w.kind = 'human') END
ON CONFLICT DO NOTHING;

-- name: next_message
-- When the next message of one of these topics is due.
SELECT due_at FROM perdure_outbox WHERE topic IN ({names}) ORDER BY due_at LIMIT 1;

-- name: take_messages
-- Takes messages that are due, or :only one; no other worker takes them until :until.
WITH due AS (
  SELECT thread_id, id FROM perdure_outbox
  WHERE due_at <= :now AND topic IN ({names}) AND (CAST(:only AS TEXT) IS NULL OR id = :only)
  ORDER BY due_at, id LIMIT :count {skip})
UPDATE perdure_outbox SET due_at = :until, attempts = attempts + 1, change = :change
WHERE (thread_id, id) IN (SELECT thread_id, id FROM due)
RETURNING thread_id, id, run_id, topic, attempts, sent_at, body;

-- name: due_messages
-- The messages that `take_messages` would take.
SELECT thread_id, id FROM perdure_outbox
WHERE due_at <= :now AND topic IN ({names}) ORDER BY due_at, id LIMIT :count;

-- name: delay_message
-- A message is tried again later: one that was taken (:change) and not delivered, or one that cannot be taken, so that
-- it does not block the others.
UPDATE perdure_outbox SET due_at = :due_at, error = :error
WHERE thread_id = :thread_id AND id = :id
  AND CASE WHEN CAST(:change AS BIGINT) IS NULL THEN due_at <= :due_at ELSE change = CAST(:change AS BIGINT) END;

-- name: taken_messages
-- Our own key: the messages of one such call.
SELECT thread_id, id, run_id, topic, attempts, sent_at, body FROM perdure_outbox
WHERE due_at = :until AND change = :change;

-- name: delete_message
-- It was delivered.
DELETE FROM perdure_outbox WHERE thread_id = :thread_id AND id = :id;

-- name: redeliver_message
-- Delivers again what was given up, or is to be tried later.
UPDATE perdure_outbox SET due_at = :now, attempts = 0 WHERE id = :id RETURNING id;

-- name: find_message
SELECT id FROM perdure_outbox WHERE id = :id;

-- name: messages
-- What is not delivered yet, oldest first, behind a position.
SELECT thread_id, id, run_id, topic, attempts, sent_at, body, due_at, error FROM perdure_outbox
WHERE (sent_at, id) > (:after, :after_id) ORDER BY sent_at, id LIMIT :count;

-- name: messages_by_due
-- What is not delivered yet, by when it is tried next, behind a position and up to a time.
SELECT thread_id, id, run_id, topic, attempts, sent_at, body, due_at, error FROM perdure_outbox
WHERE (due_at, id) > (:after, :after_id) AND due_at <= :until ORDER BY due_at, id LIMIT :count;

-- name: trace_segment
-- The trace of a run whose segment this change ended is due.
INSERT INTO perdure_traces (thread_id, run_id, sink, n, due_at, change, body)
SELECT thread_id, id, CAST(:sink AS TEXT), 0, CAST(:now AS BIGINT), 0, CAST(:empty AS {blob})
FROM perdure_runs WHERE thread_id = :thread_id AND id = :id AND change = :change
ON CONFLICT (thread_id, run_id, sink) DO UPDATE SET {trace_due};

-- name: trace_changed
-- The same for a run that another process than its driver changed, or, without :id, those whose thread was taken
-- over, if a sink has its trace already.
UPDATE perdure_traces SET {trace_due}
WHERE thread_id = :thread_id AND run_id IN (
  SELECT id FROM perdure_runs
  WHERE (thread_id = :thread_id AND id = CAST(:id AS TEXT) OR thread_id = :thread_id AND stop_change = :change)
    AND change = :change);

-- name: take_traces
-- Takes the traces that are due; no other process takes them until :until.
WITH due AS (
  SELECT thread_id, run_id, sink FROM perdure_traces
  WHERE sink = :sink AND due_at <= :now ORDER BY due_at LIMIT :count {skip})
UPDATE perdure_traces SET due_at = :until, change = :change
WHERE (thread_id, run_id, sink) IN (SELECT thread_id, run_id, sink FROM due)
RETURNING thread_id, run_id, n, body;

-- name: taken_traces
-- Our own key: the traces of one such call.
SELECT thread_id, run_id, n, body FROM perdure_traces
WHERE sink = :sink AND due_at = :until AND change = :change;

-- name: note_trace
-- The sink has the events up to :n. The trace is still due if more happened meanwhile.
UPDATE perdure_traces
SET n = :n, body = :body, change = 0,
    due_at = CASE WHEN change <> :change OR :more = 1 THEN CAST(:now AS BIGINT) END
WHERE thread_id = :thread_id AND run_id = :run_id AND sink = :sink AND n = :was;

-- name: delay_trace
-- The sink failed: the trace is due again at :due_at.
UPDATE perdure_traces SET due_at = :due_at
WHERE thread_id = :thread_id AND run_id = :run_id AND sink = :sink AND ABS(change) = :change;

-- name: put_schedule
-- Stores a schedule. An unchanged cron line keeps its next slot.
INSERT INTO perdure_schedules
  (name, graph, cron, timezone, catch_up, next_at, body, enabled, end_at, created_at, updated_at, thread_id)
VALUES (:name, :graph, :cron, :timezone, :catch_up, :next_at, :body,
        COALESCE(CAST(:enabled AS INTEGER), 1), :end_at, :created_at, :updated_at, :thread_id)
ON CONFLICT (name) DO UPDATE
SET next_at = CASE WHEN perdure_schedules.cron = excluded.cron
                    AND perdure_schedules.timezone = excluded.timezone
              THEN perdure_schedules.next_at ELSE excluded.next_at END,
    graph = excluded.graph, cron = excluded.cron, timezone = excluded.timezone,
    catch_up = excluded.catch_up, body = excluded.body,
    enabled = COALESCE(CAST(:enabled AS INTEGER), perdure_schedules.enabled),
    end_at = excluded.end_at, updated_at = excluded.updated_at, thread_id = excluded.thread_id,
    problem = NULL;

-- name: schedules
-- The schedule of a :name, or those behind one (:after), by name.
SELECT {schedule} FROM perdure_schedules
WHERE (CAST(:name AS TEXT) IS NULL OR name = :name) AND name > :after ORDER BY name LIMIT :count;

-- name: due_schedules
SELECT {schedule} FROM perdure_schedules
WHERE next_at <= :now AND enabled = 1 AND (end_at IS NULL OR next_at <= end_at) ORDER BY next_at;

-- name: move_schedule
-- Slots were started or, :missed of them, passed over, or tried without success.
UPDATE perdure_schedules
SET next_at = :next_at, missed = missed + :missed, problem = :problem,
    missed_at = CASE WHEN :missed > 0 THEN CAST(:now AS BIGINT) ELSE missed_at END
WHERE name = :name AND next_at = :slot;

-- name: enable_schedule
-- Slots that passed while it was disabled are not started, however late it catches up. Not if it has another
-- cron line than :next_at is of.
UPDATE perdure_schedules SET enabled = :enabled, next_at = :next_at, updated_at = :now
WHERE name = :name AND enabled <> :enabled AND cron = :cron AND timezone = :timezone;

-- name: delete_schedule
DELETE FROM perdure_schedules WHERE name = :name;

-- name: oldest_runs
-- Runs behind a position, oldest first, for a sweep that deletes by age and state: how each ended, whether
-- its deletion was begun, and whether its parent has not ended.
SELECT thread_id, id, state, created_at, updated_at,
       CASE WHEN state = 'cancelled' AND reason = :deleting THEN 1 ELSE 0 END,
       CASE WHEN EXISTS (SELECT 1 FROM perdure_runs AS p
                         WHERE p.id = perdure_runs.parent_id AND p.state NOT IN {ended})
       THEN 1 ELSE 0 END
FROM perdure_runs
WHERE (created_at, id) > (:after, :after_id) AND created_at <= :before
ORDER BY created_at, id LIMIT :count;

-- name: delete_run_events
-- This and the next: up to :count rows of a run that has ended. The last events first: those that are
-- left have no gap.
DELETE FROM perdure_events
WHERE thread_id = :thread_id AND run_id = :id AND n IN (
    SELECT n FROM perdure_events WHERE thread_id = :thread_id AND run_id = :id
    ORDER BY n DESC LIMIT :count)
  AND {over};

-- name: delete_run_{table}
-- for reads (task, n), stream (n), scores (name, about)
DELETE FROM perdure_{table}
WHERE thread_id = :thread_id AND run_id = :id AND {key} IN (
    SELECT {columns} FROM perdure_{table} WHERE thread_id = :thread_id AND run_id = :id LIMIT :count)
  AND {over};

-- name: delete_run_effects
-- Effects with a business key are kept: they still prevent a second call.
DELETE FROM perdure_effects
WHERE scope = :thread_id AND (task, name, n) IN (
    SELECT task, name, n FROM perdure_effects
    WHERE scope = :thread_id AND run_id = :id AND run_id <> '' LIMIT :count)
  AND {over};

-- name: delete_run_{table}
-- for signals (id), joins (wait_id, joined_id)
DELETE FROM perdure_{table}
WHERE thread_id = :thread_id AND {key} IN (
    SELECT {columns} FROM perdure_{table} WHERE thread_id = :thread_id
      AND wait_id IN (SELECT id FROM perdure_waits WHERE run_id = :id) LIMIT :count)
  AND {over};

-- name: delete_run_waits
-- Once no signals and joins are left, which are found by their waits.
DELETE FROM perdure_waits
WHERE thread_id = :thread_id AND id IN (
    SELECT id FROM perdure_waits WHERE thread_id = :thread_id AND run_id = :id LIMIT :count)
  AND NOT EXISTS (
    SELECT 1 FROM perdure_signals WHERE thread_id = :thread_id
      AND wait_id IN (SELECT id FROM perdure_waits WHERE run_id = :id))
  AND NOT EXISTS (
    SELECT 1 FROM perdure_joins WHERE thread_id = :thread_id
      AND wait_id IN (SELECT id FROM perdure_waits WHERE run_id = :id))
  AND {over};

-- name: delete_run_traces
DELETE FROM perdure_traces WHERE thread_id = :thread_id AND run_id = :id AND {over};

-- name: delete_run_turn
DELETE FROM perdure_entries WHERE run_id = :id AND run_id IS NOT NULL AND {over};

-- name: delete_run
-- The last of its rows: as long as it is there, pruning finds what is left.
DELETE FROM perdure_runs
WHERE thread_id = :thread_id AND id = :id AND state IN {ended}
  AND NOT EXISTS (SELECT 1 FROM perdure_events WHERE thread_id = :thread_id AND run_id = :id)
  AND NOT EXISTS (SELECT 1 FROM perdure_reads WHERE thread_id = :thread_id AND run_id = :id)
  AND NOT EXISTS (SELECT 1 FROM perdure_effects
                  WHERE scope = :thread_id AND run_id = :id AND run_id <> '')
  AND NOT EXISTS (SELECT 1 FROM perdure_waits WHERE thread_id = :thread_id AND run_id = :id)
  AND NOT EXISTS (SELECT 1 FROM perdure_scores WHERE thread_id = :thread_id AND run_id = :id)
  AND (:keeps_state = 1
       OR EXISTS (SELECT 1 FROM perdure_runs AS o WHERE o.thread_id = :thread_id AND o.id <> :id)
       OR NOT EXISTS (SELECT 1 FROM perdure_checkpoints WHERE thread_id = :thread_id)
          AND NOT EXISTS (SELECT 1 FROM perdure_writes WHERE thread_id = :thread_id)
          AND NOT EXISTS (SELECT 1 FROM perdure_values WHERE thread_id = :thread_id));

-- name: retire_run
-- A run that is partly deleted cannot be retried.
UPDATE perdure_runs
SET state = 'cancelled', reason = :deleting, output = NULL, error = NULL,
    events = (SELECT COALESCE(MAX(n), 0) FROM perdure_events
              WHERE thread_id = :thread_id AND run_id = :id)
WHERE thread_id = :thread_id AND id = :id AND state IN {ended};

-- name: is_run_left
-- 1: rows are left of a run that is being deleted.
SELECT CASE WHEN EXISTS (
  SELECT 1 FROM perdure_runs
  WHERE thread_id = :thread_id AND id = :id AND state = 'cancelled' AND reason = :deleting)
THEN 1 ELSE 0 END;

-- name: rows_of_thread
-- How many rows of each table erasing a thread deletes.
SELECT (SELECT COUNT(*) FROM perdure_runs WHERE thread_id = :thread_id),
       (SELECT COUNT(*) FROM perdure_checkpoints WHERE thread_id = :thread_id),
       (SELECT COUNT(*) FROM perdure_values WHERE thread_id = :thread_id),
       (SELECT COUNT(*) FROM perdure_writes WHERE thread_id = :thread_id),
       (SELECT COUNT(*) FROM perdure_events WHERE thread_id = :thread_id),
       (SELECT COUNT(*) FROM perdure_effects WHERE thread_id = :thread_id),
       (SELECT COUNT(*) FROM perdure_waits WHERE thread_id = :thread_id),
       (SELECT COUNT(*) FROM perdure_joins WHERE thread_id = :thread_id),
       (SELECT COUNT(*) FROM perdure_signals WHERE thread_id = :thread_id),
       (SELECT COUNT(*) FROM perdure_reads WHERE thread_id = :thread_id),
       (SELECT COUNT(*) FROM perdure_outbox WHERE thread_id = :thread_id),
       (SELECT COUNT(*) FROM perdure_scores WHERE thread_id = :thread_id),
       (SELECT COUNT(*) FROM perdure_traces WHERE thread_id = :thread_id),
       (SELECT COUNT(*) FROM perdure_stream WHERE thread_id = :thread_id),
       (SELECT COUNT(*) FROM perdure_threads WHERE thread_id = :thread_id),
       (SELECT COUNT(*) FROM perdure_schedules WHERE thread_id = :thread_id),
       (SELECT COUNT(*) FROM perdure_losses WHERE thread_id = :thread_id);

-- name: erase_effects
-- This and the next: up to :count rows of a thread without runs. Effects with a business key, too: they prevent no
-- call any more.
DELETE FROM perdure_effects
WHERE (scope, task, name, n) IN (
    SELECT scope, task, name, n FROM perdure_effects WHERE thread_id = :thread_id LIMIT :count)
  AND {no_runs};

-- name: erase_{table}
-- for signals (id), outbox (id)
DELETE FROM perdure_{table}
WHERE thread_id = :thread_id AND {key} IN (
    SELECT {columns} FROM perdure_{table} WHERE thread_id = :thread_id LIMIT :count)
  AND {no_runs};

-- name: erase_{table}
-- for schedules (name), losses (run_id)
DELETE FROM perdure_{table} WHERE thread_id = :thread_id AND {no_runs};

-- name: erase_thread
-- The last of its rows.
DELETE FROM perdure_threads
WHERE thread_id = :thread_id AND {no_runs} AND NOT ({rows_left});

-- name: is_erasure_left
-- 1: rows are left of a thread that is being erased, and no run was started meanwhile.
SELECT CASE WHEN EXISTS (SELECT 1 FROM perdure_threads WHERE thread_id = :thread_id) AND {no_runs}
       THEN 1 ELSE 0 END;

-- name: insert_loss
-- An acknowledged change that is missing: several processes may notice it.
INSERT INTO perdure_losses (thread_id, run_id, what, acknowledged_at, noticed_at, reason)
VALUES (:thread_id, :run_id, :what, :acknowledged_at, :now, :reason)
ON CONFLICT (thread_id, run_id, what) DO UPDATE
SET acknowledged_at = excluded.acknowledged_at, noticed_at = excluded.noticed_at, reason = excluded.reason;

-- name: delete_old_losses
DELETE FROM perdure_losses WHERE noticed_at < :before;

-- name: losses
-- Acknowledged changes that are missing, or those of a run (:id), the last ones first.
SELECT thread_id, run_id, what, acknowledged_at, noticed_at FROM perdure_losses
WHERE CAST(:id AS TEXT) IS NULL OR run_id = :id AND run_id <> ''
ORDER BY acknowledged_at DESC LIMIT :count;

-- name: standbys
-- Which standbys a commit waits for, and how many replicate.
{standbys};

-- name: identity
-- Which database this is: asked on two connections, it says whether they lead to one.
{identity};

-- name: count_runs
-- Unfinished runs by graph and state, for metrics, as the next ones.
SELECT graph, state, COUNT(*) FROM perdure_runs WHERE state NOT IN {ended} GROUP BY graph, state;

-- name: schedule_health
-- Missed slots of each schedule, and whether it starts no runs although it should.
SELECT name, graph, missed, CASE WHEN {schedule_fails} THEN 1 ELSE 0 END FROM perdure_schedules
ORDER BY name;

-- name: count_in_state
-- Runs in a state other than pending, running and done, up to :most; this and the next are for pages.
-- The order is that of an index: PostgreSQL might read the whole table otherwise.
SELECT CAST(:state AS TEXT), COUNT(*) FROM (
  SELECT 1 FROM perdure_runs
  WHERE state = :state AND state NOT IN ('pending', 'running', 'done')
  ORDER BY created_at, id LIMIT :most) AS few;

-- name: count_running
SELECT 'running', COUNT(*) FROM (
  SELECT 1 FROM perdure_runs WHERE worker IS NOT NULL AND state = 'running'
  ORDER BY worker LIMIT :most) AS few;

-- name: count_pending
SELECT 'pending', COUNT(*) FROM (
  SELECT 1 FROM perdure_runs WHERE state = 'pending' AND state NOT IN {ended}
  ORDER BY thread_id, n LIMIT :most) AS few;

-- name: count_done
-- Most runs are done: the newest ones are enough to find :most.
SELECT 'done', COUNT(*) FROM (
  SELECT 1 FROM (SELECT state FROM perdure_runs ORDER BY created_at DESC, id DESC LIMIT :looked) AS newest
  WHERE state = 'done' LIMIT :most) AS few;

-- name: count_open_waits
-- Open waits of a kind, up to :most, and since when there has been one.
SELECT CAST(:kind AS TEXT), COUNT(*), MIN(created_at) FROM (
  SELECT created_at FROM perdure_waits WHERE state = 'open' AND kind = :kind
  ORDER BY created_at, id LIMIT :most) AS few;

-- name: count_due
-- The graphs of the :count runs that have been due for longest.
SELECT graph, COUNT(*), MIN(due_at) FROM (
  SELECT graph, due_at FROM perdure_runs WHERE due_at <= :now ORDER BY due_at LIMIT :count) AS d
GROUP BY graph ORDER BY 3;

-- name: count_unknown
-- Effects with an unknown outcome, :count at most, by name, and since when there has been one.
SELECT name, COUNT(*), MIN(created_at) FROM (
  SELECT name, created_at FROM perdure_effects WHERE state = 'unknown'
  ORDER BY created_at, key LIMIT :count) AS u
GROUP BY name;

-- name: count_messages
-- Messages that are not delivered, since when there has been one, changes that were lost, and the size of the
-- database, if it can tell.
SELECT COUNT(*), MIN(sent_at), (SELECT COUNT(*) FROM perdure_losses), (SELECT {bytes})
FROM perdure_outbox;

-- name: count_late_messages
-- Messages with an attempt to come, when the first one is due, and messages that were given up, :count of each at most;
-- and the size of the database, if it can tell.
SELECT COUNT(*), MIN(due_at),
       (SELECT COUNT(*) FROM (SELECT 1 FROM perdure_outbox WHERE due_at >= :never LIMIT :count) AS g),
       (SELECT {bytes})
FROM (SELECT due_at FROM perdure_outbox WHERE due_at < :never ORDER BY due_at LIMIT :count) AS m;

-- name: nothing
-- The trace of an operation that leaves none of its own.
SELECT version FROM perdure_schema WHERE version = -1;

-- name: doctor_two_running
-- Two runs of one thread are driven at once.
SELECT thread_id, min(id), count(*) FROM perdure_runs WHERE state = 'running'
GROUP BY thread_id HAVING count(*) > 1;

-- name: doctor_out_of_turn
-- A run is due although an earlier one of its thread is not over.
SELECT r.thread_id, r.id, r.state FROM perdure_runs AS r
WHERE r.due_at IS NOT NULL AND EXISTS (
  SELECT 1 FROM perdure_runs AS e
  WHERE e.thread_id = r.thread_id AND e.n < r.n AND e.state NOT IN {ended});

-- name: doctor_forgotten
-- A run is next on its thread, but will never be claimed.
SELECT r.thread_id, r.id, r.state FROM perdure_runs AS r
WHERE r.state IN ('pending', 'running') AND r.due_at IS NULL AND NOT EXISTS (
  SELECT 1 FROM perdure_runs AS e
  WHERE e.thread_id = r.thread_id AND e.n < r.n AND e.state NOT IN {ended});

-- name: doctor_no_wait
-- A run waits, but for nothing that can come.
SELECT r.thread_id, r.id, r.state FROM perdure_runs AS r
WHERE r.state = 'waiting' AND r.due_at IS NULL AND NOT EXISTS (
  SELECT 1 FROM perdure_waits AS w WHERE w.run_id = r.id AND w.state = 'open');

-- name: doctor_clock_missed
-- A clock wait is open, but its run will be claimed too late, or never.
SELECT r.thread_id, r.id, w.id FROM perdure_runs AS r JOIN perdure_waits AS w
  ON w.run_id = r.id AND w.state = 'open' AND COALESCE(w.wake_at, w.expires_at) IS NOT NULL
WHERE r.state = 'waiting'
  AND (r.due_at IS NULL
       OR r.due_at > COALESCE(w.wake_at, w.expires_at) AND r.due_at > r.updated_at);

-- name: doctor_answer_unused
-- An answer was accepted, but its run will not be claimed.
SELECT r.thread_id, r.id, w.id FROM perdure_runs AS r JOIN perdure_waits AS w
  ON w.run_id = r.id AND w.state IN ('answered', 'applied')
WHERE r.state = 'waiting' AND r.due_at IS NULL;

-- name: doctor_ended_due
-- A run ended, but is still due, leased or waited for.
SELECT r.thread_id, r.id, r.state FROM perdure_runs AS r
WHERE r.state IN {ended} AND (r.due_at IS NOT NULL OR r.worker IS NOT NULL OR EXISTS (
  SELECT 1 FROM perdure_waits AS w WHERE w.run_id = r.id AND w.state = 'open'));

-- name: doctor_gap
-- The numbers of a run's events have a gap, or are not those it counted.
SELECT r.thread_id, r.id, count(e.n) FROM perdure_runs AS r LEFT JOIN perdure_events AS e
  ON e.thread_id = r.thread_id AND e.run_id = r.id
GROUP BY r.thread_id, r.id, r.events
HAVING count(e.n) <> r.events OR COALESCE(min(e.n), 1) <> 1 OR COALESCE(max(e.n), 0) <> r.events;

-- name: doctor_signal_twice
-- A signal's wait is gone, or was answered by something else.
SELECT s.thread_id, s.id, s.name FROM perdure_signals AS s
WHERE s.wait_id IS NOT NULL AND NOT EXISTS (
  SELECT 1 FROM perdure_waits AS w
  WHERE w.thread_id = s.thread_id AND w.id = s.wait_id AND w.answered_by = 'signal');

-- name: doctor_no_outcome
SELECT thread_id, key, state FROM perdure_effects
WHERE state IN ('done', 'failed') AND outcome IS NULL;

-- name: doctor_held_settled
-- A run is held although a person settled the last of the effects that it was held for.
SELECT thread_id, id, state FROM perdure_runs
WHERE state = 'held' AND error IS NULL AND {settled};

-- name: doctor_signal_unused
-- A run waits for a signal that is stored, but will be claimed too late, or never.
SELECT r.thread_id, r.id, w.name FROM perdure_runs AS r
JOIN perdure_waits AS w ON w.run_id = r.id AND w.state = 'open' AND w.kind <> 'clock'
JOIN perdure_signals AS s
  ON s.thread_id = r.thread_id AND s.name = w.name AND s.wait_id IS NULL
WHERE r.state = 'waiting'
  AND (r.due_at IS NULL OR r.due_at > s.sent_at AND r.due_at > r.updated_at);

-- name: doctor_join_unused
-- A run waits for runs that have ended, but will be claimed too late, or never.
SELECT r.thread_id, r.id, w.id FROM perdure_runs AS r
JOIN perdure_waits AS w ON w.run_id = r.id AND w.state = 'open' AND {joined}
WHERE r.state = 'waiting' AND (r.due_at IS NULL OR r.due_at > r.updated_at AND NOT EXISTS (
  SELECT 1 FROM perdure_joins AS j JOIN perdure_runs AS e
    ON e.thread_id = j.joined_thread AND e.id = j.joined_id
  WHERE j.thread_id = w.thread_id AND j.wait_id = w.id AND r.due_at <= e.updated_at));

-- name: put_assistant
-- Stores an assistant, if it is still as the caller saw it. 0: it had no row.
INSERT INTO perdure_assistants (id, version, graph, name, created_at, updated_at, change, body)
SELECT CAST(:id AS TEXT), CAST(:version AS INTEGER), CAST(:graph AS TEXT), CAST(:name AS TEXT),
       CAST(:now AS BIGINT), CAST(:now AS BIGINT), CAST(:change AS BIGINT), CAST(:body AS {blob})
WHERE :seen = 0 OR EXISTS (SELECT 1 FROM perdure_assistants WHERE id = :id)
ON CONFLICT (id) DO UPDATE
SET version = excluded.version, graph = excluded.graph, name = excluded.name,
    updated_at = excluded.updated_at, change = excluded.change, body = excluded.body
WHERE perdure_assistants.change = :seen;

-- name: find_assistant_change
-- Our own key: did this change store it?
SELECT 1 FROM perdure_assistants WHERE id = :id AND change = :change;

-- name: assistant
SELECT {assistant} FROM perdure_assistants WHERE id = :id;

-- name: assistants
SELECT {assistant} FROM perdure_assistants ORDER BY created_at DESC, id;

-- name: delete_assistant
DELETE FROM perdure_assistants WHERE id = :id;

-- name: require_thread
-- Refuses the batch unless the thread has a record.
INSERT INTO perdure_entries (name)
SELECT {refuse} WHERE NOT EXISTS (SELECT 1 FROM perdure_threads WHERE thread_id = :thread_id);

-- name: insert_thread
-- Creates the record of a thread, unless it has one.
INSERT INTO perdure_threads
  (thread_id, runs, graph, assistant, created_at, updated_at, expires_at, change, body)
VALUES (:thread_id, 0, :graph, :assistant, :now, :now, :expires_at, :change, :body)
ON CONFLICT DO NOTHING;

-- name: assign_thread
-- The graph and assistant of a thread's first run.
UPDATE perdure_threads
SET graph = COALESCE(graph, CAST(:graph AS TEXT)),
    assistant = COALESCE(assistant, CAST(:assistant AS TEXT)), updated_at = :now
WHERE thread_id = :thread_id;

-- name: change_thread
-- Stores what a caller sets on a thread, if it has not changed since the caller read it.
UPDATE perdure_threads
SET graph = COALESCE(CAST(:graph AS TEXT), graph),
    assistant = COALESCE(CAST(:assistant AS TEXT), assistant), updated_at = :now, expires_at = :expires_at,
    change = :change, body = :body
WHERE thread_id = :thread_id AND change = :seen;

-- name: set_has_next
-- Whether nodes are left to run after a caller changed the state of a thread.
UPDATE perdure_threads SET has_next = :has_next WHERE thread_id = :thread_id;

-- name: threads_by_ids
SELECT {thread} FROM {thread_rows} WHERE t.thread_id IN ({names}) AND {has_status};

-- name: threads_by_created
-- This and the next: a page of threads, newest first, in the order of an index.
SELECT {thread} FROM {thread_rows} WHERE {is_listed}
ORDER BY t.created_at DESC, t.thread_id DESC LIMIT :count OFFSET :offset;

-- name: threads_by_updated
SELECT {thread} FROM {thread_rows}
WHERE (t.updated_at, t.thread_id) < (:before, :before_id) AND {is_listed}
ORDER BY t.updated_at DESC, t.thread_id DESC LIMIT :count OFFSET :offset;

-- name: threads_of_graph
-- The same of one graph.
SELECT {thread} FROM {thread_rows} WHERE t.graph = :graph AND {is_listed}
ORDER BY t.created_at DESC, t.thread_id DESC LIMIT :count OFFSET :offset;

-- name: threads_not_idle
-- Threads that are busy, interrupted or failed, found by the runs that may make them so.
SELECT {thread} FROM (
  SELECT thread_id FROM perdure_runs WHERE state NOT IN {ended}
  UNION
  SELECT thread_id FROM perdure_runs
  WHERE state IN ('failed', 'cancelled') AND state NOT IN ('pending', 'running', 'done')
    AND :status <> 'busy'
  UNION
  SELECT thread_id FROM perdure_threads WHERE has_next = 1 AND :status = 'interrupted'
) AS c JOIN perdure_threads AS t ON t.thread_id = c.thread_id {last_run}
WHERE {is_listed}
ORDER BY {thread_order} LIMIT :count OFFSET :offset;

-- name: threads_sorted
-- The same in any other order: it reads all threads.
SELECT {thread} FROM {thread_rows}
WHERE {is_listed}
ORDER BY {thread_order} LIMIT :count OFFSET :offset;

-- name: count_threads
SELECT COUNT(*) FROM {thread_rows}
WHERE {is_listed};

-- name: questions_of_threads
-- The open questions to people in these threads. A CROSS JOIN keeps SQLite from beginning with all
-- open questions.
SELECT r.thread_id, w.interrupt_id FROM perdure_runs AS r CROSS JOIN perdure_waits AS w
WHERE r.thread_id IN ({names}) AND r.state NOT IN {ended}
  AND w.run_id = r.id AND w.state = 'open' AND w.kind = 'human';

-- name: expired_threads
-- Expired threads without an unfinished run, or one that ended after :recent.
SELECT thread_id FROM perdure_threads AS t
WHERE expires_at <= :now AND expires_at IS NOT NULL AND NOT EXISTS (
  SELECT 1 FROM perdure_runs AS r
  WHERE r.thread_id = t.thread_id AND (r.state NOT IN {ended} OR r.updated_at > :recent))
ORDER BY expires_at LIMIT :count;

-- name: insert_stream
-- Stores chunks of a segment, unless its lease is lost: then neither these nor later ones are stored.
INSERT INTO perdure_stream (thread_id, run_id, n, last, token, at, replaces, body)
SELECT thread_id, id, CAST(:n AS INTEGER), CAST(:last AS INTEGER), token, CAST(:now AS BIGINT),
       CAST(:replaces AS INTEGER), CAST(:body AS {blob})
FROM perdure_runs
WHERE thread_id = :thread_id AND id = :id AND token = :token AND state = 'running'
ON CONFLICT DO NOTHING
RETURNING n;

-- name: find_stream
-- The row that a driver stored at a number.
SELECT n FROM perdure_stream
WHERE thread_id = :thread_id AND run_id = :id AND n = :n AND token = :token;

-- name: stream_after
-- What a run produced after chunk :after, without rows that a later segment replaced (or with them: :replaced), and
-- from which chunk on it replaced the others.
SELECT s.n, s.last, s.token, s.at, s.replaces, s.body,
       (SELECT min(v.replaces) FROM perdure_stream AS v
        WHERE v.thread_id = :thread_id AND v.run_id = :id AND v.replaces IS NOT NULL
          AND v.replaces > s.n AND v.replaces <= s.last AND v.n > s.n AND :replaced = 0)
FROM perdure_stream AS s
WHERE s.thread_id = :thread_id AND s.run_id = :id AND s.last > :after
  AND s.n >= COALESCE((SELECT max(f.n) FROM perdure_stream AS f
                       WHERE f.thread_id = :thread_id AND f.run_id = :id AND f.n <= :after), 0)
  AND (:replaced = 1 OR NOT EXISTS (
    SELECT 1 FROM perdure_stream AS m
    WHERE m.thread_id = :thread_id AND m.run_id = :id AND m.replaces IS NOT NULL
      AND m.replaces <= s.n AND m.n > s.n))
ORDER BY s.n LIMIT :count;

-- name: stream_state
-- Whether more may follow what was read: the state of a run, whether it rests until a person
-- decides, and whether its chunks are still kept.
SELECT state, CASE WHEN state IN ('paused', 'held') OR (
         state = 'waiting' AND (due_at IS NULL OR due_at > :now) AND EXISTS (
           SELECT 1 FROM perdure_waits AS w
           WHERE w.run_id = :id AND w.state = 'open' AND w.kind = 'human'))
       THEN 1 ELSE 0 END, streams
FROM perdure_runs WHERE thread_id = :thread_id AND id = :id;

-- name: last_chunk
-- The number of the last chunk of a run.
SELECT COALESCE(max(last), 0) FROM perdure_stream
WHERE thread_id = :thread_id AND run_id = :id
  AND n = (SELECT max(l.n) FROM perdure_stream AS l
           WHERE l.thread_id = :thread_id AND l.run_id = :id);

-- name: versions_of_runs
-- Values that differ once one of these runs has changed or produced output, or one of these threads
-- has a new run.
SELECT id, version, streamed FROM (
  SELECT r.id AS id, r.change AS version,
         COALESCE((SELECT max(s.n) FROM perdure_stream AS s
                   WHERE s.thread_id = r.thread_id AND s.run_id = r.id), 0) AS streamed
  FROM perdure_runs AS r WHERE r.id IN ({names})
  UNION ALL
  SELECT t.thread_id, t.runs, 0 FROM perdure_threads AS t WHERE t.thread_id IN ({names})) AS versions;

-- name: runs_with_streams
-- The oldest runs after a position whose chunks are kept.
SELECT thread_id, id, state, created_at, updated_at FROM perdure_runs
WHERE streams = 1 AND (created_at, id) > (:after, :after_id) ORDER BY created_at, id LIMIT :count;

-- name: note_stream_deleted
-- Marks a run without chunks as keeping none.
UPDATE perdure_runs SET streams = 0
WHERE thread_id = :thread_id AND id = :id AND state IN {ended} AND NOT EXISTS (
  SELECT 1 FROM perdure_stream AS s WHERE s.thread_id = :thread_id AND s.run_id = :id);

-- name: is_stream_left
SELECT CASE WHEN EXISTS (
  SELECT 1 FROM perdure_runs AS r JOIN perdure_stream AS s
    ON s.thread_id = r.thread_id AND s.run_id = r.id
  WHERE r.thread_id = :thread_id AND r.id = :id AND r.state IN {ended})
THEN 1 ELSE 0 END;

-- name: insert_token
-- Stores the hash of a new token, unless a token with that name is not revoked.
INSERT INTO perdure_tokens (hash, name, scopes, created_at, expires_at)
VALUES (:hash, :name, :scopes, :now, :expires_at)
ON CONFLICT DO NOTHING;

-- name: find_token
SELECT hash, name, scopes, created_at, expires_at, used_at, revoked_at FROM perdure_tokens
WHERE hash = :hash;

-- name: tokens
SELECT hash, name, scopes, created_at, expires_at, used_at, revoked_at FROM perdure_tokens
ORDER BY created_at, name, revoked_at IS NULL;

-- name: use_token
UPDATE perdure_tokens SET used_at = :now
WHERE hash = :hash AND (used_at IS NULL OR used_at < :before);

-- name: revoke_token
UPDATE perdure_tokens SET revoked_at = :now WHERE name = :name AND revoked_at IS NULL;

-- name: runs_after
-- The runs of a thread after a number, in order.
SELECT {run} FROM perdure_runs WHERE thread_id = :thread_id AND n > :after ORDER BY n LIMIT :count;

-- name: oldest_kept
-- What may be kept no longer: when the first thread is to be erased, and when the first run was accepted
-- whose chunks are kept.
SELECT (SELECT min(expires_at) FROM perdure_threads WHERE expires_at IS NOT NULL),
       (SELECT min(created_at) FROM perdure_runs WHERE streams = 1);

-- name: newest_questions
SELECT id, created_at, run_id FROM perdure_waits WHERE state = 'open' AND kind = 'human'
ORDER BY created_at DESC, id DESC LIMIT :count;

-- name: newest_runs
SELECT id, created_at FROM perdure_runs ORDER BY created_at DESC, id DESC LIMIT :count;

-- name: announced
-- The last heartbeat of a worker as it is in the database, where an older one than was written means that this went
-- back in time; and the request to drain it.
SELECT seen_at, drain_at, drain_by FROM perdure_workers WHERE id = :id;

-- name: announce_worker
-- Stores the heartbeat of a worker. A restart, with another :started_at, clears a request to drain.
INSERT INTO perdure_workers (id, host, pid, graphs, concurrency, started_at, seen_at)
VALUES (:id, :host, :pid, :graphs, :concurrency, :started_at, :seen_at)
ON CONFLICT (id) DO UPDATE
SET graphs = excluded.graphs, concurrency = excluded.concurrency, seen_at = excluded.seen_at,
    started_at = excluded.started_at,
    drain_at = CASE WHEN perdure_workers.started_at = excluded.started_at THEN perdure_workers.drain_at END,
    drain_by = CASE WHEN perdure_workers.started_at = excluded.started_at THEN perdure_workers.drain_by END;

-- name: delete_workers
-- Deletes a worker (:id), and those that have been silent for a long time.
DELETE FROM perdure_workers WHERE id = CAST(:id AS TEXT) OR seen_at < CAST(:before AS BIGINT);

-- name: drain_worker
-- Asks a worker to drain. The first request stays.
UPDATE perdure_workers SET drain_at = :now, drain_by = :by WHERE id = :id AND drain_at IS NULL;

-- name: announced_workers
SELECT id, host, pid, graphs, concurrency, started_at, seen_at, drain_at, drain_by
FROM perdure_workers ORDER BY started_at, id LIMIT :count;

-- name: driven_runs
SELECT worker, id, thread_id, graph, version, driven, updated_at, due_at FROM perdure_runs
WHERE worker IS NOT NULL AND state = 'running' ORDER BY worker LIMIT :count;
