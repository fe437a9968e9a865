-- The versions of prompts are named in the events of what read them, and in scores. On D1, deleting a row is what
-- deletes the chunks of a large value.
DELETE FROM perdure_prompts;
DROP TABLE perdure_prompts;
DROP TABLE perdure_prompt_uses;
DROP TABLE perdure_score_prompts;
