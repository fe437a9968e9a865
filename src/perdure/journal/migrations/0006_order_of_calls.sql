-- For nodes that make their calls in another order when they run again.
--
-- min_equal            how many arguments of a call must equal the recorded ones to match this record;
--                      raised for all records of a name in a task when a call matched another's record
-- provisional_digests  digests of the calls, separated by spaces, that matched this record with other
--                      arguments
-- unconfirmed          1: made after such a match in its task, so perhaps with wrong arguments;
--                      2: a person was asked which call it stands for
ALTER TABLE perdure_effects ADD COLUMN min_equal INTEGER NOT NULL DEFAULT 0;
ALTER TABLE perdure_effects ADD COLUMN provisional_digests {text} NOT NULL DEFAULT '';
ALTER TABLE perdure_effects ADD COLUMN unconfirmed INTEGER NOT NULL DEFAULT 0;
