-- A run with a webhook of its own: the topic of the messages that tell about its ends and its questions.
ALTER TABLE perdure_runs ADD COLUMN webhook {text};

CREATE INDEX perdure_runs_webhook ON perdure_runs (thread_id, change) WHERE webhook IS NOT NULL;
