-- Assistants, and what callers say about threads.

-- One row per assistant that was created or changed. The assistant that each graph has by itself has a row
-- only once it was changed.
--
-- version   the version that runs use
-- versions  the number of the newest version
CREATE TABLE perdure_assistants (
  id         {text} NOT NULL PRIMARY KEY,
  version    INTEGER NOT NULL,
  versions   INTEGER NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL
);

-- `change` is the random number of the change that made the version.
CREATE TABLE perdure_assistant_versions (
  assistant_id {text} NOT NULL,
  version      INTEGER NOT NULL,
  graph        {text} NOT NULL,
  name         {text} NOT NULL,
  created_at   BIGINT NOT NULL,
  change       BIGINT NOT NULL,
  body         {blob} NOT NULL,
  PRIMARY KEY (assistant_id, version)
);

-- One row per thread, made by its first run or before it.
--
-- graph       its graph, by which lists are filtered: the one that its caller named, or of its first run
-- assistant   the same for its assistant; NULL: that of the graph
-- updated_at  when a run of it was last started, or the row was changed
-- expires_at  when it is erased, unless a run is under way
-- has_next    1: a caller changed its state, and left nodes to run
-- change      random number of the last change of `body`
-- body        metadata, config, and how long it is kept; NULL: none
CREATE TABLE perdure_thread_records (
  thread_id  {text} NOT NULL PRIMARY KEY,
  graph      {text},
  assistant  {text},
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  expires_at BIGINT,
  has_next   INTEGER NOT NULL DEFAULT 0,
  change     BIGINT NOT NULL,
  body       {blob}
);

CREATE INDEX perdure_thread_records_created ON perdure_thread_records (created_at, thread_id);
CREATE INDEX perdure_thread_records_updated ON perdure_thread_records (updated_at, thread_id);
CREATE INDEX perdure_thread_records_graph_created
ON perdure_thread_records (graph, created_at, thread_id);
CREATE INDEX perdure_thread_records_graph_updated
ON perdure_thread_records (graph, updated_at, thread_id);
CREATE INDEX perdure_thread_records_assistant ON perdure_thread_records (assistant, created_at, thread_id)
WHERE assistant IS NOT NULL;
CREATE INDEX perdure_thread_records_expires ON perdure_thread_records (expires_at)
WHERE expires_at IS NOT NULL;

CREATE INDEX perdure_thread_records_next ON perdure_thread_records (thread_id) WHERE has_next = 1;

INSERT INTO perdure_thread_records (thread_id, graph, created_at, updated_at, change)
SELECT r.thread_id, r.graph, r.created_at,
       (SELECT MAX(o.created_at) FROM perdure_runs AS o WHERE o.thread_id = r.thread_id), 0
FROM perdure_runs AS r
WHERE r.n = (SELECT MIN(o.n) FROM perdure_runs AS o WHERE o.thread_id = r.thread_id);

-- Runs that ended badly: a thread whose last run did is listed by that.
CREATE INDEX perdure_runs_unsuccessful ON perdure_runs (thread_id)
WHERE state IN ('failed', 'cancelled');
