-- Checkpoints, the values of their channels, and the writes of their tasks.
-- Every key starts with the thread, so that a database can be split by thread.

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

CREATE INDEX perdure_checkpoints_run ON perdure_checkpoints (run_id) WHERE run_id IS NOT NULL;

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
