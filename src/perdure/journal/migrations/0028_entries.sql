-- Fewer tables and indexes: turns, shapes of graphs and the secret of the servers are entries of one table, which
-- guards refuse too; an assistant has no history; the size of the database is not sampled. Small tables are
-- one tree each.
DROP TABLE perdure_sizes;
DROP TABLE perdure_fence;

CREATE TABLE perdure_entries (
  name   {text} NOT NULL PRIMARY KEY,
  run_id {text},
  body   {blob}
) {one_tree};
CREATE INDEX perdure_entries_run ON perdure_entries (run_id) WHERE run_id IS NOT NULL;

INSERT INTO perdure_entries (name, body) SELECT 'graph ' || fingerprint, {utf8_body} FROM perdure_graphs;
INSERT INTO perdure_entries (name, run_id) SELECT 'turn ' || scope, run_id FROM perdure_turns;
INSERT INTO perdure_entries (name, body) SELECT 'server secret', body FROM perdure_server_secret;
DROP TABLE perdure_graphs;
DROP TABLE perdure_turns;
DROP TABLE perdure_server_secret;

-- Of each assistant, the version that its runs use.
CREATE TABLE perdure_assistants_new (
  id         {text} NOT NULL PRIMARY KEY,
  version    INTEGER NOT NULL,
  graph      {text} NOT NULL,
  name       {text} NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  change     BIGINT NOT NULL,
  body       {blob} NOT NULL
) {one_tree};

INSERT INTO perdure_assistants_new
  (id, version, graph, name, created_at, updated_at, change, body)
SELECT a.id, v.version, v.graph, v.name, a.created_at, v.created_at, v.change, v.body
FROM perdure_assistants AS a JOIN perdure_assistant_versions AS v
  ON v.assistant_id = a.id AND v.version = a.version;
DROP TABLE perdure_assistants;
DROP TABLE perdure_assistant_versions;
ALTER TABLE perdure_assistants_new RENAME TO perdure_assistants;

DROP INDEX perdure_threads_graph_created;
DROP INDEX perdure_threads_graph_updated;
CREATE INDEX perdure_threads_graph ON perdure_threads (graph, created_at, thread_id);
DROP INDEX perdure_threads_assistant;

-- A run is found by its number or its id: each has one index.
CREATE TABLE perdure_runs_new (
  thread_id             {text} NOT NULL,
  id                    {text} NOT NULL,
  n                     INTEGER NOT NULL,
  graph                 {text} NOT NULL,
  version               {text} NOT NULL,
  key                   {text},
  state                 {text} NOT NULL,
  due_at                BIGINT,
  ready_at              BIGINT NOT NULL,
  token                 BIGINT NOT NULL,
  worker                {text},
  attempts              INTEGER NOT NULL,
  begun                 INTEGER NOT NULL,
  poked                 INTEGER NOT NULL,
  was                   {text},
  control               {text},
  control_at            BIGINT,
  undo                  INTEGER NOT NULL,
  events                INTEGER NOT NULL,
  change                BIGINT NOT NULL,
  created_at            BIGINT NOT NULL,
  updated_at            BIGINT NOT NULL,
  fingerprint           {text},
  reason                {text},
  setup                 {blob} NOT NULL,
  output                {blob},
  error                 {blob},
  saved_effects         BIGINT NOT NULL DEFAULT 0,
  saved_calls           BIGINT NOT NULL DEFAULT 0,
  labels                {blob},
  driven                {text},
  parent_id             {text},
  depth                 INTEGER NOT NULL DEFAULT 0,
  ignores_parent_cancel INTEGER NOT NULL DEFAULT 0,
  lease_until           BIGINT,
  recoveries            INTEGER NOT NULL DEFAULT 0,
  streams               INTEGER NOT NULL DEFAULT 0,
  streamed              {text},
  webhook               {text},
  stop_change           BIGINT,
  steps                 INTEGER NOT NULL DEFAULT 0,
  model_calls           INTEGER NOT NULL DEFAULT 0,
  saved_steps           BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (thread_id, n)
);

INSERT INTO perdure_runs_new (
  thread_id, id, n, graph, version, key, state, due_at, ready_at, token, worker, attempts, begun,
  poked, was, control, control_at, undo, events, change, created_at, updated_at, fingerprint,
  reason, setup, output, error, saved_effects, saved_calls, labels, driven, parent_id, depth,
  ignores_parent_cancel, lease_until, recoveries, streams, streamed, webhook, stop_change, steps,
  model_calls, saved_steps)
SELECT
  thread_id, id, n, graph, version, key, state, due_at, ready_at, token, worker, attempts, begun,
  poked, was, control, control_at, undo, events, change, created_at, updated_at, fingerprint,
  reason, setup, output, error, saved_effects, saved_calls, labels, driven, parent_id, depth,
  ignores_parent_cancel, lease_until, recoveries, streams, streamed, webhook, stop_change, steps,
  model_calls, saved_steps
FROM perdure_runs;
DROP TABLE perdure_runs;
ALTER TABLE perdure_runs_new RENAME TO perdure_runs;
CREATE INDEX perdure_runs_due ON perdure_runs (due_at) WHERE due_at IS NOT NULL;
CREATE UNIQUE INDEX perdure_runs_id ON perdure_runs (id, thread_id);
CREATE INDEX perdure_runs_worker ON perdure_runs (worker) WHERE worker IS NOT NULL;
CREATE INDEX perdure_runs_created ON perdure_runs (created_at, id);
CREATE UNIQUE INDEX perdure_runs_key ON perdure_runs (thread_id, key) WHERE key IS NOT NULL;
CREATE INDEX perdure_runs_open ON perdure_runs (thread_id, n, state)
WHERE state NOT IN ('done', 'failed', 'cancelled');
CREATE INDEX perdure_runs_parent ON perdure_runs (parent_id, created_at, id)
WHERE parent_id IS NOT NULL;
CREATE INDEX perdure_runs_stopped ON perdure_runs (thread_id, stop_change) WHERE stop_change IS NOT NULL;
CREATE INDEX perdure_runs_streams ON perdure_runs (created_at, id) WHERE streams = 1;
CREATE INDEX perdure_runs_state ON perdure_runs (state, created_at, id)
WHERE state NOT IN ('pending', 'running', 'done');
{roomy};

CREATE TABLE perdure_signals_new (
  thread_id {text} NOT NULL,
  id        {text} NOT NULL,
  name      {text} NOT NULL,
  key       {text},
  sent_at   BIGINT NOT NULL,
  wait_id   {text},
  change    BIGINT,
  body      {blob} NOT NULL,
  PRIMARY KEY (thread_id, id)
) {one_tree};

INSERT INTO perdure_signals_new (
  thread_id, id, name, key, sent_at, wait_id, change, body)
SELECT
  thread_id, id, name, key, sent_at, wait_id, change, body
FROM perdure_signals;
DROP TABLE perdure_signals;
ALTER TABLE perdure_signals_new RENAME TO perdure_signals;
CREATE UNIQUE INDEX perdure_signals_key ON perdure_signals (thread_id, name, key)
WHERE key IS NOT NULL;
CREATE INDEX perdure_signals_kept ON perdure_signals (thread_id, name, sent_at)
WHERE wait_id IS NULL;

CREATE TABLE perdure_outbox_new (
  thread_id {text} NOT NULL,
  id        {text} NOT NULL,
  run_id    {text} NOT NULL,
  topic     {text} NOT NULL,
  due_at    BIGINT NOT NULL,
  attempts  INTEGER NOT NULL,
  change    BIGINT NOT NULL,
  sent_at   BIGINT NOT NULL,
  error     {text},
  body      {blob} NOT NULL,
  PRIMARY KEY (thread_id, id)
) {one_tree};

INSERT INTO perdure_outbox_new (
  thread_id, id, run_id, topic, due_at, attempts, change, sent_at, error, body)
SELECT
  thread_id, id, run_id, topic, due_at, attempts, change, sent_at, error, body
FROM perdure_outbox;
DROP TABLE perdure_outbox;
ALTER TABLE perdure_outbox_new RENAME TO perdure_outbox;
CREATE INDEX perdure_outbox_due ON perdure_outbox (due_at);

CREATE TABLE perdure_schedules_new (
  name       {text} NOT NULL PRIMARY KEY,
  graph      {text} NOT NULL,
  cron       {text} NOT NULL,
  timezone   {text} NOT NULL,
  catch_up   BIGINT,
  next_at    BIGINT NOT NULL,
  body       {blob} NOT NULL,
  enabled    INTEGER NOT NULL DEFAULT 1,
  end_at     BIGINT,
  created_at BIGINT NOT NULL DEFAULT 0,
  updated_at BIGINT NOT NULL DEFAULT 0,
  thread_id  {text},
  missed     BIGINT NOT NULL DEFAULT 0,
  missed_at  BIGINT,
  problem    {text}
) {one_tree};

INSERT INTO perdure_schedules_new (
  name, graph, cron, timezone, catch_up, next_at, body, enabled, end_at, created_at, updated_at,
  thread_id, missed, missed_at, problem)
SELECT
  name, graph, cron, timezone, catch_up, next_at, body, enabled, end_at, created_at, updated_at,
  thread_id, missed, missed_at, problem
FROM perdure_schedules;
DROP TABLE perdure_schedules;
ALTER TABLE perdure_schedules_new RENAME TO perdure_schedules;

CREATE TABLE perdure_workers_new (
  id          {text} NOT NULL PRIMARY KEY,
  host        {text} NOT NULL,
  pid         BIGINT NOT NULL,
  graphs      {text} NOT NULL,
  concurrency BIGINT NOT NULL,
  started_at  BIGINT NOT NULL,
  seen_at     BIGINT NOT NULL,
  drain_at    BIGINT,
  drain_by    {text}
) {one_tree};

INSERT INTO perdure_workers_new (
  id, host, pid, graphs, concurrency, started_at, seen_at, drain_at, drain_by)
SELECT
  id, host, pid, graphs, concurrency, started_at, seen_at, drain_at, drain_by
FROM perdure_workers;
DROP TABLE perdure_workers;
ALTER TABLE perdure_workers_new RENAME TO perdure_workers;

CREATE TABLE perdure_tokens_new (
  hash       {text} NOT NULL PRIMARY KEY,
  name       {text} NOT NULL,
  scopes     {text} NOT NULL,
  created_at BIGINT NOT NULL,
  expires_at BIGINT,
  used_at    BIGINT,
  revoked_at BIGINT
) {one_tree};

INSERT INTO perdure_tokens_new (
  hash, name, scopes, created_at, expires_at, used_at, revoked_at)
SELECT
  hash, name, scopes, created_at, expires_at, used_at, revoked_at
FROM perdure_tokens;
DROP TABLE perdure_tokens;
ALTER TABLE perdure_tokens_new RENAME TO perdure_tokens;
CREATE UNIQUE INDEX perdure_tokens_name ON perdure_tokens (name) WHERE revoked_at IS NULL;

CREATE TABLE perdure_waits_new (
  thread_id     {text} NOT NULL,
  id            {text} NOT NULL,
  run_id        {text} NOT NULL,
  kind          {text} NOT NULL,
  name          {text},
  state         {text} NOT NULL,
  interrupt_id  {text} NOT NULL,
  ns            {text} NOT NULL,
  checkpoint_id {text} NOT NULL,
  task_id       {text} NOT NULL,
  path          {text} NOT NULL,
  stamp         BIGINT NOT NULL,
  token         BIGINT NOT NULL,
  wake_at       BIGINT,
  expires_at    BIGINT,
  created_at    BIGINT NOT NULL,
  answered_at   BIGINT,
  answered_by   {text},
  change        BIGINT,
  body          {blob} NOT NULL,
  answer        {blob},
  seal          {blob},
  graph         {text},
  assignee      {text},
  PRIMARY KEY (thread_id, id)
) {one_tree};

INSERT INTO perdure_waits_new (
  thread_id, id, run_id, kind, name, state, interrupt_id, ns, checkpoint_id, task_id, path, stamp,
  token, wake_at, expires_at, created_at, answered_at, answered_by, change, body, answer, seal,
  graph, assignee)
SELECT
  thread_id, id, run_id, kind, name, state, interrupt_id, ns, checkpoint_id, task_id, path, stamp,
  token, wake_at, expires_at, created_at, answered_at, answered_by, change, body, answer, seal,
  graph, assignee
FROM perdure_waits;
DROP TABLE perdure_waits;
ALTER TABLE perdure_waits_new RENAME TO perdure_waits;
CREATE INDEX perdure_waits_id ON perdure_waits (id);
CREATE INDEX perdure_waits_run ON perdure_waits (run_id, kind);
CREATE INDEX perdure_waits_kind ON perdure_waits (kind, created_at, id) WHERE state = 'open';
CREATE INDEX perdure_waits_graph ON perdure_waits (kind, graph, created_at, id)
WHERE state = 'open' AND kind = 'human';
CREATE INDEX perdure_waits_assignee ON perdure_waits (kind, assignee, created_at, id)
WHERE state = 'open' AND kind = 'human';
CREATE INDEX perdure_waits_expires ON perdure_waits (kind, expires_at, id)
WHERE state = 'open' AND kind = 'human' AND expires_at IS NOT NULL;
