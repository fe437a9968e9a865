-- What is known of the order in which a node makes its calls, for a node that makes them in another one
-- when it runs again.
--
-- alike     how many arguments of a call must be equal to get this record; raised for all records of
--           a name in a task when a call got one that was another's
-- lent      digests of the calls, separated by spaces, that got this record with other arguments
-- doubtful  1: called after one call of its task had got such a record, so perhaps with wrong arguments;
--           2: a person was asked which call it stands for
ALTER TABLE perdure_effects ADD COLUMN alike INTEGER NOT NULL DEFAULT 0;
ALTER TABLE perdure_effects ADD COLUMN lent {text} NOT NULL DEFAULT '';
ALTER TABLE perdure_effects ADD COLUMN doubtful INTEGER NOT NULL DEFAULT 0;
