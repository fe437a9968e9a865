-- Runs, their waits, signals, recorded reads and events; schedules.
-- Times are milliseconds since 1970. Every key starts with the thread, so that a database can be
-- split by thread; a schedule belongs to none.

-- One row per thread that ever had a run. `runs` numbers them. The row is what every change of
-- the order of a thread's runs locks first.
CREATE TABLE perdure_threads (
  thread_id {text} NOT NULL PRIMARY KEY,
  runs      INTEGER NOT NULL
);

-- One row per run.
--
-- due_at    when it should be claimed. Of a running one that is the end of its lease, of a
--           waiting one the next clock; NULL when only a person, a signal or the run before it on
--           its thread can make it due. The whole of scheduling is this column and its index.
-- ready_at  the earliest due_at of a run that has not begun (start's `after`)
-- token     raised by every claim; what a driver writes carries it, and is refused when it is old
-- attempts  claims since the last progress, this one included
-- poked     an answer or a signal came while it was driven: do not let it rest
-- was       its state before the last claim
-- change    random number of the last change; the event of that change has the same one
CREATE TABLE perdure_runs (
  thread_id   {text} NOT NULL,
  id          {text} NOT NULL,
  n           INTEGER NOT NULL,
  graph       {text} NOT NULL,
  version     {text} NOT NULL,
  key         {text},
  state       {text} NOT NULL,
  due_at      BIGINT,
  ready_at    BIGINT NOT NULL,
  token       BIGINT NOT NULL,
  worker      {text},
  attempts    INTEGER NOT NULL,
  begun       INTEGER NOT NULL,
  poked       INTEGER NOT NULL,
  was         {text},
  control     {text},
  control_at  BIGINT,
  undo        INTEGER NOT NULL,
  events      INTEGER NOT NULL,
  change      BIGINT NOT NULL,
  created_at  BIGINT NOT NULL,
  updated_at  BIGINT NOT NULL,
  fingerprint {text},
  reason      {text},
  setup       {blob} NOT NULL,
  output      {blob},
  error       {blob},
  PRIMARY KEY (thread_id, id)
);

CREATE INDEX perdure_runs_due ON perdure_runs (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX perdure_runs_id ON perdure_runs (id);
CREATE INDEX perdure_runs_worker ON perdure_runs (worker) WHERE worker IS NOT NULL;
CREATE INDEX perdure_runs_created ON perdure_runs (created_at, id);
CREATE UNIQUE INDEX perdure_runs_order ON perdure_runs (thread_id, n);
CREATE UNIQUE INDEX perdure_runs_key ON perdure_runs (thread_id, key) WHERE key IS NOT NULL;

-- One row per question a run asked: of the clock, of a person, or for a signal. It points at the
-- task that asked. `token` is the claim under which it was last asked. Its state:
--
-- open      not answered yet
-- answered  the answer is here, and will be handed to the task at the next claim
-- applied   it was handed over; if that driver dies, it is handed over again
-- consumed  the task went on with it
-- closed    asked again with another value, or the run ended
CREATE TABLE perdure_waits (
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
  PRIMARY KEY (thread_id, id)
);

CREATE INDEX perdure_waits_id ON perdure_waits (id);
CREATE INDEX perdure_waits_run ON perdure_waits (run_id);
CREATE INDEX perdure_waits_open ON perdure_waits (created_at, id) WHERE state = 'open';

-- One row per signal, kept until a wait takes it.
CREATE TABLE perdure_signals (
  thread_id {text} NOT NULL,
  id        {text} NOT NULL,
  name      {text} NOT NULL,
  key       {text},
  sent_at   BIGINT NOT NULL,
  wait_id   {text},
  change    BIGINT,
  body      {blob} NOT NULL,
  PRIMARY KEY (thread_id, id)
);

CREATE UNIQUE INDEX perdure_signals_key ON perdure_signals (thread_id, name, key)
WHERE key IS NOT NULL;
CREATE INDEX perdure_signals_kept ON perdure_signals (thread_id, name, sent_at)
WHERE wait_id IS NULL;

-- What now(), random() and uuid() gave to a task.
CREATE TABLE perdure_reads (
  thread_id {text} NOT NULL,
  run_id    {text} NOT NULL,
  task      {text} NOT NULL,
  n         INTEGER NOT NULL,
  body      {blob} NOT NULL,
  PRIMARY KEY (thread_id, run_id, task, n)
) {one_tree};

-- The history of a run, numbered without a gap from 1.
CREATE TABLE perdure_events (
  thread_id {text} NOT NULL,
  run_id    {text} NOT NULL,
  n         INTEGER NOT NULL,
  at        BIGINT NOT NULL,
  kind      {text} NOT NULL,
  change    BIGINT NOT NULL,
  body      {blob} NOT NULL,
  PRIMARY KEY (thread_id, run_id, n)
) {one_tree};

-- The shapes of graphs that runs were begun with, to compare with the graph that goes on with them.
CREATE TABLE perdure_graphs (
  fingerprint {text} NOT NULL PRIMARY KEY,
  body        {text} NOT NULL
);

-- One row per schedule. `next_at` is the slot that fires next.
CREATE TABLE perdure_schedules (
  name       {text} NOT NULL PRIMARY KEY,
  graph      {text} NOT NULL,
  cron       {text} NOT NULL,
  timezone   {text} NOT NULL,
  catch_up   BIGINT,
  next_at    BIGINT NOT NULL,
  body       {blob} NOT NULL
);

-- Never holds a row: what is inserted is NULL, and so refuses the batch it is in.
CREATE TABLE perdure_fence (
  refused INTEGER NOT NULL
);
