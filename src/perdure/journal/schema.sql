-- The tables of a journal, in the common subset of SQLite and PostgreSQL.
--
-- A new journal is made from this file. One of an earlier version is brought up to date by
-- `migrations/`, and then has the same tables, columns and indexes; a test compares them.
--
-- Times are milliseconds since 1970. Every key starts with the thread, so that a database can be split
-- by thread; what belongs to no thread says so. Columns named `body`, `state`, `setup`, `output`, `error`,
-- `labels`, `arguments`, `outcome`, `answer` and `seal` are blobs of `serde/`.
--
-- Fragments, where the databases differ: `one_tree` keeps a table of short rows in one tree, `events_stay` is
-- the trigger that refuses a change of an event, `roomy` leaves room in the pages of runs.

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
CREATE TABLE perdure_threads (
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
) {one_tree};

CREATE INDEX perdure_threads_created ON perdure_threads (created_at, thread_id);
CREATE INDEX perdure_threads_updated ON perdure_threads (updated_at, thread_id);
CREATE INDEX perdure_threads_graph ON perdure_threads (graph, created_at, thread_id);
CREATE INDEX perdure_threads_expires ON perdure_threads (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX perdure_threads_next ON perdure_threads (thread_id) WHERE has_next = 1;

-- One row per run.
--
-- due_at       when it should be claimed. Of a running one that is the end of its lease, of a waiting one the
--              next clock; NULL when only a person, a signal or the run before it on its thread can make it
--              due. The whole of scheduling is this column and its index
-- ready_at     the earliest due_at of a run that has not begun (`after` of start)
-- token        raised by every claim; what a driver writes carries it, and is refused when it is old
-- attempts     claims since the last progress, this one included
-- poked        an answer or a signal came while it was driven: do not let it rest
-- was          its state before the last claim
-- lease_until  the end of a running run's lease by the monotonic clock of its worker's host, in
--              milliseconds. The last part of the worker's id identifies that clock. NULL or 0: only
--              `due_at` applies
-- control      `cancel` or `pause`: asked of its driver
-- undo         1: its checkpoints are to be deleted before the next run of the thread begins; 2: they are
-- change       random number of the last change; the event of that change has the same one
-- stop_change  number of the change that stopped it because another run took its thread over
-- fingerprint  of the graph that it was last driven with
-- driven       who drove it last: `worker`, `cron` (a tick) or `call`
-- parent_id    the run whose node started it; depth: how many runs are above it
-- streams      1: what it produces is kept, and not deleted yet
-- streamed     how many chunks it had produced before its last checkpoint, and before those that subgraphs
--              stored since: {"": 12, "node:task": 15}
-- webhook      topic of the messages that tell about its ends and its questions
-- recoveries   claims after a worker that was lost
-- steps, model_calls                     steps that it has stored, and the model calls in them
-- saved_steps, saved_effects, saved_calls what it did not have to do again: steps and model calls that were
--              stored when a segment began, over all its segments; and effects returned from their record
CREATE TABLE perdure_runs (
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

-- A step changes no indexed column. On PostgreSQL it then writes no index entry (HOT), if its page has room for
-- another version of the row.
CREATE INDEX perdure_runs_due ON perdure_runs (due_at) WHERE due_at IS NOT NULL;
CREATE UNIQUE INDEX perdure_runs_id ON perdure_runs (id, thread_id);
CREATE INDEX perdure_runs_worker ON perdure_runs (worker) WHERE worker IS NOT NULL;
CREATE INDEX perdure_runs_created ON perdure_runs (created_at, id);
CREATE UNIQUE INDEX perdure_runs_key ON perdure_runs (thread_id, key) WHERE key IS NOT NULL;
-- The runs of a thread that are not over: however many were before them, they are found at once. Which of
-- them are pending is in the index.
CREATE INDEX perdure_runs_open ON perdure_runs (thread_id, n, state)
WHERE state NOT IN ('done', 'failed', 'cancelled');
CREATE INDEX perdure_runs_parent ON perdure_runs (parent_id, created_at, id)
WHERE parent_id IS NOT NULL;
CREATE INDEX perdure_runs_stopped ON perdure_runs (thread_id, stop_change) WHERE stop_change IS NOT NULL;
CREATE INDEX perdure_runs_streams ON perdure_runs (created_at, id) WHERE streams = 1;
-- Runs that rest, newest first. A run that is pending, driven and done passes by it.
CREATE INDEX perdure_runs_state ON perdure_runs (state, created_at, id)
WHERE state NOT IN ('pending', 'running', 'done');
{roomy};

-- The history of a run, numbered without a gap from 1. It is only added to and deleted: no statement changes an
-- event, and the database refuses one that would.
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

{events_stay};

-- What now(), random() and uuid() gave to a task.
CREATE TABLE perdure_reads (
  thread_id {text} NOT NULL,
  run_id    {text} NOT NULL,
  task      {text} NOT NULL,
  n         INTEGER NOT NULL,
  body      {blob} NOT NULL,
  PRIMARY KEY (thread_id, run_id, task, n)
) {one_tree};

-- One row per question a run asked: of the clock, of a person, or for a signal. It points at the task that
-- asked. Its state:
--
-- open      not answered yet
-- answered  the answer is here, and will be handed to the task at the next claim
-- applied   it was handed over; if that driver dies, it is handed over again
-- consumed  the task went on with it
-- closed    asked again with another value, or the run ended
--
-- token     the claim under which it was last asked
-- seal      authenticates which task asks (ns, checkpoint_id, task_id, path, stamp), so that an answer
--           cannot be handed to another one. NULL in rows of version 0.1
-- graph     of the run that asks; NULL in some rows of version 0.1
-- assignee  the person to whom an open question is assigned; NULL: nobody
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
  seal          {blob},
  graph         {text},
  assignee      {text},
  PRIMARY KEY (thread_id, id)
) {one_tree};

-- Every open wait is in one index, by its kind; a list of all kinds merges four lists. Only questions to
-- people are in the others, which begin with the kind so that SQLite prefers them to the first: a sleep
-- costs no more than before. The waits of one run are found by two columns: with one, SQLite would
-- prefer a partial index that begins with the kind, and read every open wait of it.
CREATE INDEX perdure_waits_id ON perdure_waits (id);
CREATE INDEX perdure_waits_run ON perdure_waits (run_id, kind);
CREATE INDEX perdure_waits_kind ON perdure_waits (kind, created_at, id) WHERE state = 'open';
CREATE INDEX perdure_waits_graph ON perdure_waits (kind, graph, created_at, id)
WHERE state = 'open' AND kind = 'human';
CREATE INDEX perdure_waits_assignee ON perdure_waits (kind, assignee, created_at, id)
WHERE state = 'open' AND kind = 'human';
CREATE INDEX perdure_waits_expires ON perdure_waits (kind, expires_at, id)
WHERE state = 'open' AND kind = 'human' AND expires_at IS NOT NULL;

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
) {one_tree};

CREATE UNIQUE INDEX perdure_signals_key ON perdure_signals (thread_id, name, key)
WHERE key IS NOT NULL;
CREATE INDEX perdure_signals_kept ON perdure_signals (thread_id, name, sent_at)
WHERE wait_id IS NULL;

-- The runs that a wait of the kind `run` is for, one row each. The end of a run finds its waiters here.
CREATE TABLE perdure_joins (
  thread_id     {text} NOT NULL,
  wait_id       {text} NOT NULL,
  joined_thread {text} NOT NULL,
  joined_id     {text} NOT NULL,
  PRIMARY KEY (thread_id, wait_id, joined_id)
) {one_tree};

CREATE INDEX perdure_joins_joined ON perdure_joins (joined_thread, joined_id);

-- One row per effect: its place, and how far it is. The row is there before the call is made. Its state:
--
-- open      about to be called, or called: unknown, unless its caller is alive
-- done      outcome is what it returned
-- failed    outcome is what it raised, for good
-- unknown   a person has to settle it
-- again     known not to have happened: to be called when its task comes to it
--
-- scope     the thread; of an effect with a business key, the name and that key: it is then one for
--           all threads, and its task is empty
-- task, n   the task that calls, and the number of the call of that name in it
-- key       what the far side is given: the same for every attempt
-- intent    random number of the caller that may call now; an outcome is stored only under it
-- digest    of the arguments
-- undo      1: it has a compensation, 2: that was made
-- mark      1: it only reads, so that its outcome does not have to be known; 2: failed, and not to be
--           called even if the run is tried again: it happened, or a person said so
-- settled   the number of the run's event of its outcome: the order in which effects settled
-- due_at    not to be tried again before that
--
-- For nodes that make their calls in another order when they run again:
--
-- min_equal            how many arguments of a call must equal the recorded ones to match this record;
--                      raised for all records of a name in a task when a call matched another's record
-- provisional_digests  digests of the calls, separated by spaces, that matched this record with other
--                      arguments
-- unconfirmed          1: made after such a match in its task, so perhaps with wrong arguments;
--                      2: a person was asked which call it stands for
CREATE TABLE perdure_effects (
  scope               {text} NOT NULL,
  task                {text} NOT NULL,
  name                {text} NOT NULL,
  n                   INTEGER NOT NULL,
  key                 {text} NOT NULL,
  thread_id           {text} NOT NULL,
  run_id              {text} NOT NULL,
  checkpoint_id       {text} NOT NULL,
  state               {text} NOT NULL,
  intent              BIGINT NOT NULL,
  attempts            INTEGER NOT NULL,
  digest              {text} NOT NULL,
  undo                INTEGER NOT NULL,
  mark                INTEGER NOT NULL,
  settled             INTEGER NOT NULL,
  due_at              BIGINT,
  created_at          BIGINT NOT NULL,
  updated_at          BIGINT NOT NULL,
  arguments           {blob} NOT NULL,
  outcome             {blob},
  min_equal           INTEGER NOT NULL DEFAULT 0,
  provisional_digests {text} NOT NULL DEFAULT '',
  unconfirmed         INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (scope, task, name, n)
) {one_tree};

CREATE INDEX perdure_effects_key ON perdure_effects (key);
CREATE INDEX perdure_effects_run ON perdure_effects (run_id, created_at) WHERE run_id <> '';
CREATE INDEX perdure_effects_unknown ON perdure_effects (created_at, key) WHERE state = 'unknown';

-- Messages to be delivered once what made them is committed. Delivered ones are deleted.
CREATE TABLE perdure_outbox (
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

CREATE INDEX perdure_outbox_due ON perdure_outbox (due_at);

-- One row per checkpoint. `refs` names the values it is made of, as a JSON list of
-- [channel, chain, seq, step]; small values are inside `state`. `step` is a random number of
-- the writer of the row: what builds on the row names it, and is refused if it is another's.
CREATE TABLE perdure_checkpoints (
  thread_id  {text} NOT NULL,
  ns         {text} NOT NULL,
  id         {text} NOT NULL,
  parent_id  {text},
  run_id     {text},
  step       BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  refs       {text} NOT NULL,
  state      {blob} NOT NULL,
  PRIMARY KEY (thread_id, ns, id)
);

-- One row per change of a channel. A chain starts with a whole value at seq 0; each later row
-- is a change of the row before it, whose step is `base`. Two branches may continue one chain:
-- `step` tells them apart.
CREATE TABLE perdure_values (
  thread_id {text} NOT NULL,
  ns        {text} NOT NULL,
  channel   {text} NOT NULL,
  chain     BIGINT NOT NULL,
  seq       INTEGER NOT NULL,
  step      BIGINT NOT NULL,
  base      BIGINT,
  body      {blob} NOT NULL,
  PRIMARY KEY (thread_id, ns, channel, chain, seq, step)
);

-- One row per call of put_writes. No foreign key: LangGraph may write before it checkpoints.
CREATE TABLE perdure_writes (
  thread_id     {text} NOT NULL,
  ns            {text} NOT NULL,
  checkpoint_id {text} NOT NULL,
  task_id       {text} NOT NULL,
  stamp         BIGINT NOT NULL,
  refs          {text},
  body          {blob} NOT NULL,
  PRIMARY KEY (thread_id, ns, checkpoint_id, task_id, stamp)
) {one_tree};

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

-- How much of a run's history each receiver of traces (`sink`) was given: the events up to `n`, and in
-- `body` what is open there, so that any process goes on. `due_at` is NULL while there is nothing to
-- give; the process that exports moves it ahead, and leaves a random number in `change`.
CREATE TABLE perdure_traces (
  thread_id {text} NOT NULL,
  run_id    {text} NOT NULL,
  sink      {text} NOT NULL,
  n         BIGINT NOT NULL,
  due_at    BIGINT,
  change    BIGINT NOT NULL,
  body      {blob} NOT NULL,
  PRIMARY KEY (thread_id, run_id, sink)
) {one_tree};

CREATE INDEX perdure_traces_due ON perdure_traces (sink, due_at) WHERE due_at IS NOT NULL;

-- How well a run did, reported perhaps weeks after its end. The last word counts.
--
-- about      the part of the run that earned it
-- kind       number (`value`), category (`label`) or text: only a comment. `value` is 0 then
-- target     what `target_id` names: `step` a checkpoint, `effect` a key, `question` a wait. Empty: the run,
--            or the part of it that `about` names
-- change     random number of the last change; the event of that change has the same one
CREATE TABLE perdure_scores (
  thread_id {text} NOT NULL,
  run_id    {text} NOT NULL,
  name      {text} NOT NULL,
  about     {text} NOT NULL,
  value     DOUBLE PRECISION NOT NULL,
  at        BIGINT NOT NULL,
  body      {blob} NOT NULL,
  kind      {text} NOT NULL DEFAULT 'number',
  label     {text},
  target    {text} NOT NULL DEFAULT '',
  target_id {text} NOT NULL DEFAULT '',
  change    BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (thread_id, run_id, name, about)
) {one_tree};

-- Acknowledged changes that the database did not have any more when a process looked, because it had
-- gone back in time: an asynchronous standby was promoted, or a backup was restored.
--
-- run_id  empty if it was no change of a run
-- what    the run, its last changes, or the name of an operation
CREATE TABLE perdure_losses (
  thread_id       {text} NOT NULL,
  run_id          {text} NOT NULL,
  what            {text} NOT NULL,
  acknowledged_at BIGINT NOT NULL,
  noticed_at      BIGINT NOT NULL,
  reason          {text} NOT NULL,
  PRIMARY KEY (thread_id, run_id, what)
) {one_tree};

-- One row per schedule. It belongs to no thread.
--
-- next_at    the slot that fires next
-- enabled    0: it starts no run until it is enabled again
-- end_at     the last time at which it starts a run; NULL: it has no end
-- thread_id  the thread on which its runs are, whose erasure deletes it; NULL: each has its own
-- missed     how many slots started no run
-- missed_at  when the last of them was passed over
-- problem    why it started no run when it was last due; NULL once it does
CREATE TABLE perdure_schedules (
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
) {one_tree};

-- One row per assistant that was created or changed. The assistant that each graph has by itself has a row
-- only once it was changed.
--
-- version     how often it was stored
-- change      random number of the last change
CREATE TABLE perdure_assistants (
  id         {text} NOT NULL PRIMARY KEY,
  version    INTEGER NOT NULL,
  graph      {text} NOT NULL,
  name       {text} NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  change     BIGINT NOT NULL,
  body       {blob} NOT NULL
) {one_tree};

-- Tokens of the HTTP API. A token itself is never stored, only its hash.
--
-- hash        SHA-256 of the token, as hex
-- scopes      read, start, answer, admin; separated by spaces
-- used_at     when it was last used, to within some minutes
-- revoked_at  NULL: it may be used, until expires_at
CREATE TABLE perdure_tokens (
  hash       {text} NOT NULL PRIMARY KEY,
  name       {text} NOT NULL,
  scopes     {text} NOT NULL,
  created_at BIGINT NOT NULL,
  expires_at BIGINT,
  used_at    BIGINT,
  revoked_at BIGINT
) {one_tree};

CREATE UNIQUE INDEX perdure_tokens_name ON perdure_tokens (name) WHERE revoked_at IS NULL;

-- What is found by its name alone, and belongs to no thread:
--
-- graph FINGERPRINT  the shape of a graph that runs were begun with, to compare with the graph that goes on
--                    with them
-- turn SCOPE         `run_id` is the run whose turn it is with something that only one run at a time may
--                    work on. It is its run's as long as that is driven
-- server secret      signs sessions of the browser, forms and links to questions, for all servers on this
--                    journal; made by the first process that needs it
--
-- A statement that refuses its batch inserts a row without a name, which fails.
CREATE TABLE perdure_entries (
  name   {text} NOT NULL PRIMARY KEY,
  run_id {text},
  body   {blob}
) {one_tree};

CREATE INDEX perdure_entries_run ON perdure_entries (run_id) WHERE run_id IS NOT NULL;
