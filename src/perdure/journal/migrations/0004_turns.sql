-- Whose turn it is with something that only one run at a time may work on. It is its run's as long as
-- that is driven.
CREATE TABLE perdure_turns (
  scope {text} NOT NULL PRIMARY KEY,
  run_id {text} NOT NULL
);
