-- Scores of every kind, about any part of a run; prompt versions, and what they touched.

-- kind       number (`value`), category (`label`) or text: only a comment. `value` is 0 then.
-- target     what `target_id` names: `step` a checkpoint, `effect` a key, `question` a wait. Empty: the run,
--            or the part of it that `about` names
-- change     random number of the last change; the event of that change has the same one
ALTER TABLE perdure_scores ADD COLUMN kind {text} NOT NULL DEFAULT 'number';
ALTER TABLE perdure_scores ADD COLUMN label {text};
ALTER TABLE perdure_scores ADD COLUMN target {text} NOT NULL DEFAULT '';
ALTER TABLE perdure_scores ADD COLUMN target_id {text} NOT NULL DEFAULT '';
ALTER TABLE perdure_scores ADD COLUMN change BIGINT NOT NULL DEFAULT 0;

-- One row per text of a prompt. `version` is a hash of the text.
CREATE TABLE perdure_prompts (
  name     {text} NOT NULL,
  version  {text} NOT NULL,
  first_at BIGINT NOT NULL,
  body     {blob} NOT NULL,
  PRIMARY KEY (name, version)
);

-- The prompt versions that a run, or a step, effect or question of it, read. `target` and `target_id` are
-- those of scores.
CREATE TABLE perdure_prompt_uses (
  thread_id {text} NOT NULL,
  run_id    {text} NOT NULL,
  target    {text} NOT NULL,
  target_id {text} NOT NULL,
  prompt    {text} NOT NULL,
  version   {text} NOT NULL,
  PRIMARY KEY (thread_id, run_id, target, target_id, prompt, version)
) {one_tree};

CREATE INDEX perdure_prompt_uses_runs ON perdure_prompt_uses (prompt, version) WHERE target = '';

-- The prompt versions that a score is about: those that its target had read when the score was given. The
-- index finds the scores of a version without reading runs.
CREATE TABLE perdure_score_prompts (
  thread_id {text} NOT NULL,
  run_id    {text} NOT NULL,
  name      {text} NOT NULL,
  about     {text} NOT NULL,
  prompt    {text} NOT NULL,
  version   {text} NOT NULL,
  PRIMARY KEY (thread_id, run_id, name, about, prompt, version)
) {one_tree};

CREATE INDEX perdure_score_prompts_version ON perdure_score_prompts (prompt, version);
