-- Workers that announce themselves, and how large the database was.

-- One row per process that drives runs for longer than a moment. It is deleted when the process stops; that
-- of a killed one stays for an hour.
--
-- id        as in perdure_runs.worker
-- graphs    a JSON list of the graphs it drives, each name@version
-- seen_at   when it last said that it is there
-- drain_at  when it was asked to claim nothing more and to end
-- drain_by  who asked, as a JSON object of by, via and from
CREATE TABLE perdure_workers (
  id          {text} NOT NULL PRIMARY KEY,
  host        {text} NOT NULL,
  pid         BIGINT NOT NULL,
  graphs      {text} NOT NULL,
  concurrency BIGINT NOT NULL,
  started_at  BIGINT NOT NULL,
  seen_at     BIGINT NOT NULL,
  drain_at    BIGINT,
  drain_by    {text}
);

-- The size of the database, once an hour. `at` is the start of the hour.
CREATE TABLE perdure_sizes (
  at    BIGINT NOT NULL PRIMARY KEY,
  bytes BIGINT NOT NULL
);
