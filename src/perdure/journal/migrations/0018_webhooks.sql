-- A run with a webhook of its own: the topic of the messages that tell about its ends and its questions.
ALTER TABLE perdure_runs ADD COLUMN webhook {text};
