-- Questions in the inbox: whom they are assigned to, of which graph they are; what people decided.

-- graph     of the run that asks; NULL in rows that were closed before this migration
-- assignee  the person to whom an open question is assigned; NULL: nobody
ALTER TABLE perdure_waits ADD COLUMN graph {text};
ALTER TABLE perdure_waits ADD COLUMN assignee {text};

UPDATE perdure_waits SET graph = (
  SELECT r.graph FROM perdure_runs AS r
  WHERE r.thread_id = perdure_waits.thread_id AND r.id = perdure_waits.run_id)
WHERE state = 'open';

-- Every open wait is in one index, by its kind; a list of all kinds merges four lists. Only questions to
-- people are in the others, which begin with the kind so that SQLite prefers them to the first: a sleep
-- costs no more than before. The waits of one run are found by two columns: with one, SQLite would
-- prefer a partial index that begins with the kind, and read every open wait of it.
DROP INDEX perdure_waits_open;
DROP INDEX perdure_waits_run;
CREATE INDEX perdure_waits_run ON perdure_waits (run_id, kind);
CREATE INDEX perdure_waits_kind ON perdure_waits (kind, created_at, id) WHERE state = 'open';
CREATE INDEX perdure_waits_graph ON perdure_waits (kind, graph, created_at, id)
WHERE state = 'open' AND kind = 'human';
CREATE INDEX perdure_waits_assignee ON perdure_waits (kind, assignee, created_at, id)
WHERE state = 'open' AND kind = 'human';
CREATE INDEX perdure_waits_expires ON perdure_waits (kind, expires_at, id)
WHERE state = 'open' AND kind = 'human' AND expires_at IS NOT NULL;

-- decision  1: the event is a decision about the run that came from outside, such as an answer
ALTER TABLE perdure_events ADD COLUMN decision INTEGER;

UPDATE perdure_events SET decision = 1 WHERE kind IN ('answer', 'withdrawn', 'settled');

CREATE INDEX perdure_events_decisions ON perdure_events (at, thread_id, run_id, n)
WHERE decision = 1;

-- History is only added to and deleted: no statement changes an event, and the database refuses one that would.
{events_stay};

-- Runs that rest, by state and by graph, newest first. A run that is pending, driven and done passes by
-- the first index, and comes into the second one once, at its end.
CREATE INDEX perdure_runs_state ON perdure_runs (state, created_at, id)
WHERE state NOT IN ('pending', 'running', 'done');
CREATE INDEX perdure_runs_graph ON perdure_runs (graph, created_at, id)
WHERE state NOT IN ('pending', 'running');

-- The same rows as before, with their state: which of them are pending is in the index.
DROP INDEX perdure_runs_open;
CREATE INDEX perdure_runs_open ON perdure_runs (thread_id, n, state)
WHERE state NOT IN ('done', 'failed', 'cancelled');
