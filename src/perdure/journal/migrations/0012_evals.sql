-- Datasets and experiments. Neither belongs to a thread.

-- One row per version of a dataset. Its examples are those of all changes up to it. Inserting the row is what
-- makes a change: of two changes that would be the same version, the first is.
CREATE TABLE perdure_dataset_versions (
  dataset {text} NOT NULL,
  version BIGINT NOT NULL,
  change  BIGINT NOT NULL,
  at      BIGINT NOT NULL,
  body    {blob} NOT NULL,
  PRIMARY KEY (dataset, version)
);

-- One row per example that a change adds, replaces or removes: which of these is in the body. The rows of a
-- change that is not a version yet, or never became one, are in no version.
CREATE TABLE perdure_examples (
  dataset {text} NOT NULL,
  change  BIGINT NOT NULL,
  n       INTEGER NOT NULL,
  id      {text} NOT NULL,
  body    {blob} NOT NULL,
  PRIMARY KEY (dataset, change, n)
);

-- One row per experiment, with its settings. They never change.
CREATE TABLE perdure_experiments (
  name       {text} NOT NULL PRIMARY KEY,
  dataset    {text} NOT NULL,
  version    BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  body       {blob} NOT NULL
);
