-- One row per thread, made by its first run or before it. It is what every change of the order of a
-- thread's runs locks first.
--
-- runs        numbers its runs
-- graph       its graph, by which lists are filtered: the one that its caller named, or of its first run
-- assistant   the same for its assistant; NULL: that of the graph
-- updated_at  when a run of it was last started, or the row was changed
-- expires_at  when it is erased, unless a run is under way
-- has_next    1: a caller changed its state, and left nodes to run
-- change      random number of the last change of `body`
-- body        metadata, config, and how long it is kept; NULL: none
CREATE TABLE perdure_threads_new (
  thread_id  {text} NOT NULL PRIMARY KEY,
  runs       INTEGER NOT NULL,
  graph      {text},
  assistant  {text},
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  expires_at BIGINT,
  has_next   INTEGER NOT NULL DEFAULT 0,
  change     BIGINT NOT NULL,
  body       {blob}
){one_tree};

INSERT INTO perdure_threads_new
  (thread_id, runs, graph, assistant, created_at, updated_at, expires_at, has_next, change, body)
SELECT r.thread_id, COALESCE(t.runs, 0), r.graph, r.assistant, r.created_at, r.updated_at, r.expires_at,
       r.has_next, r.change, r.body
FROM perdure_thread_records AS r LEFT JOIN perdure_threads AS t ON t.thread_id = r.thread_id;

-- A thread whose erasing was cut off may have no more than its number.
INSERT INTO perdure_threads_new (thread_id, runs, created_at, updated_at, change)
SELECT thread_id, runs, 0, 0, 0 FROM perdure_threads
WHERE thread_id NOT IN (SELECT thread_id FROM perdure_thread_records);

DROP TABLE perdure_threads;
DROP TABLE perdure_thread_records;
ALTER TABLE perdure_threads_new RENAME TO perdure_threads;

CREATE INDEX perdure_threads_created ON perdure_threads (created_at, thread_id);
CREATE INDEX perdure_threads_updated ON perdure_threads (updated_at, thread_id);
CREATE INDEX perdure_threads_graph_created ON perdure_threads (graph, created_at, thread_id);
CREATE INDEX perdure_threads_graph_updated ON perdure_threads (graph, updated_at, thread_id);
CREATE INDEX perdure_threads_assistant ON perdure_threads (assistant, created_at, thread_id)
WHERE assistant IS NOT NULL;
CREATE INDEX perdure_threads_expires ON perdure_threads (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX perdure_threads_next ON perdure_threads (thread_id) WHERE has_next = 1;
