-- An evaluation is its runs and their scores: datasets and experiments have no tables of their own. On D1,
-- deleting a row is what deletes the chunks of a large value.
DELETE FROM perdure_experiments;
DELETE FROM perdure_examples;
DELETE FROM perdure_dataset_versions;
DROP TABLE perdure_experiments;
DROP TABLE perdure_examples;
DROP TABLE perdure_dataset_versions;
