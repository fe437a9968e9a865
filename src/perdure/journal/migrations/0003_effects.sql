-- Effects: calls that leave the process, each with its intent and its outcome. Messages of the outbox.

-- What a run did not have to pay for again, because it was recorded.
ALTER TABLE perdure_runs ADD COLUMN saved_effects BIGINT NOT NULL DEFAULT 0;
ALTER TABLE perdure_runs ADD COLUMN saved_calls BIGINT NOT NULL DEFAULT 0;
ALTER TABLE perdure_runs ADD COLUMN saved_tokens BIGINT NOT NULL DEFAULT 0;

-- One row per effect: its place, and how far it is. The row is there before the call is made.
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
-- open      about to be called, or called: unknown, unless its caller is alive
-- done      outcome is what it returned
-- failed    outcome is what it raised, for good
-- unknown   a person has to settle it
-- again     known not to have happened: to be called when its task comes to it
CREATE TABLE perdure_effects (
  scope         {text} NOT NULL,
  task          {text} NOT NULL,
  name          {text} NOT NULL,
  n             INTEGER NOT NULL,
  key           {text} NOT NULL,
  thread_id     {text} NOT NULL,
  run_id        {text} NOT NULL,
  checkpoint_id {text} NOT NULL,
  state         {text} NOT NULL,
  intent        BIGINT NOT NULL,
  attempts      INTEGER NOT NULL,
  digest        {text} NOT NULL,
  undo          INTEGER NOT NULL,
  mark          INTEGER NOT NULL,
  settled       INTEGER NOT NULL,
  due_at        BIGINT,
  created_at    BIGINT NOT NULL,
  updated_at    BIGINT NOT NULL,
  arguments     {blob} NOT NULL,
  outcome       {blob},
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
);

CREATE INDEX perdure_outbox_due ON perdure_outbox (due_at);
