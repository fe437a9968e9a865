-- What runs produce while they are driven, for readers in any process.
--
-- A row holds the chunks numbered from n to last: everything one transaction took. The row that
-- begins a segment says in `replaces` from which number on the output before it is void.
CREATE TABLE perdure_stream (
  thread_id {text} NOT NULL,
  run_id    {text} NOT NULL,
  n         INTEGER NOT NULL,
  last      INTEGER NOT NULL,
  token     BIGINT NOT NULL,
  at        BIGINT NOT NULL,
  replaces  INTEGER,
  body      {blob} NOT NULL,
  PRIMARY KEY (thread_id, run_id, n)
) {one_tree};

CREATE INDEX perdure_stream_replaces ON perdure_stream (thread_id, run_id, replaces)
WHERE replaces IS NOT NULL;

-- streams   1: what it produces is kept, and not deleted yet
-- streamed  how many chunks it had produced before its last checkpoint, and before those that
--           subgraphs stored since: {"": 12, "node:task": 15}
ALTER TABLE perdure_runs ADD COLUMN streams INTEGER NOT NULL DEFAULT 0;
ALTER TABLE perdure_runs ADD COLUMN streamed {text};

CREATE INDEX perdure_runs_streams ON perdure_runs (created_at, id) WHERE streams = 1;
