"""Bugs to plant, and the tests that find them: `python -m tests.contract.planted [word of a name]`.

Each bug is one replacement in one file of a copy of `src`. Texts are compared without regard to
white space, and searched in all files, so code can move; `test_planted.py` checks that each is
there exactly once. A bug that its test does not find means that the test lacks a tooth.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SECONDS = 400
"""After which a test counts as hanging, which is a way to find a bug."""


class Bug(NamedTuple):
    """A bug, and the test that finds it."""

    name: str
    text: str
    instead: str
    test: str
    """Below `tests/contract`: its file, and its name with or without parameters."""
    also: tuple[tuple[str, str], ...] = ()
    """More replacements, each a text and what is there instead."""
    database: str = "not d1 and not postgres"
    """The marks of the tests that are run."""


BUGS = [
    # -- accepting runs
    Bug(
        "a commit returns before it is on disk",
        'writer.execute(f"PRAGMA synchronous = {self._synchronous}")',
        'writer.execute("PRAGMA synchronous = OFF")',
        "test_power_cut.py::test_nothing_acknowledged_is_lost_when_power_is",
    ),
    Bug(
        "the key of a run is not stored",
        "CAST(:key AS TEXT), 'pending',",
        "NULL, 'pending',",
        "test_accepting.py::test_the_same_key_gives_the_run_it_made_before",
    ),
    Bug(
        "a second run of a thread is due at once",
        "CASE WHEN NOT EXISTS (SELECT 1 FROM perdure_runs AS r WHERE r.thread_id = :thread_id AND "
        "r.state NOT IN {ended}) THEN CAST(:due_at AS BIGINT) END",
        "CAST(:due_at AS BIGINT)",
        "test_accepting.py::test_the_runs_of_a_thread_go_one_at_a_time_in_order",
    ),
    Bug(
        "the next run of a thread never gets its turn",
        "AND n = (SELECT min(r.n) FROM perdure_runs AS r WHERE r.thread_id = :thread_id AND "
        "r.state NOT IN {ended});",
        "AND n < 0;",
        "test_accepting.py::test_the_runs_of_a_thread_go_one_at_a_time_in_order",
    ),
    Bug(
        "a run with after= is due at once",
        "THEN CAST(:due_at AS BIGINT) END, CAST(:ready_at AS BIGINT), 0,",
        "THEN CAST(:now AS BIGINT) END, CAST(:ready_at AS BIGINT), 0,",
        "test_accepting.py::test_a_run_that_is_to_start_later_is_not_driven_earlier",
    ),
    # -- driving: the fence, takeovers, attempts
    Bug(
        "the token is not compared when a task's writes are stored",
        "WHERE thread_id = :thread_id AND id = :run_id AND token = CAST(:token AS BIGINT) "
        "AND state = 'running' {share})",
        "WHERE thread_id = :thread_id AND id = :run_id AND state = 'running' {share})",
        "test_fence.py::test_a_write_with_an_old_token_is_refused_in_each_durability_mode",
    ),
    Bug(
        "the token is not compared when a step is counted",
        "SET token = CASE WHEN token = :token AND state = 'running' THEN token ELSE {refuse} END, "
        "attempts = 1,",
        "SET token = CASE WHEN state = 'running' THEN token ELSE {refuse} END, attempts = 1,",
        "test_fence.py::test_a_write_with_an_old_token_is_refused_in_each_durability_mode",
    ),
    Bug(
        "the token is not compared in the fence of reads and waits",
        "WHERE thread_id = :thread_id AND id = :id AND token = :token AND state = 'running' "
        "{share});",
        "WHERE thread_id = :thread_id AND id = :id AND state = 'running' {share});",
        "test_fence.py::test_recorded_reads_of_a_fenced_driver_are_not_kept",
    ),
    Bug(
        "the token is not compared when a segment ends",
        "WHERE thread_id = :thread_id AND id = :id AND token = :token AND state = 'running' "
        "RETURNING state;",
        "WHERE thread_id = :thread_id AND id = :id AND state = 'running' RETURNING state;",
        "test_fence.py::test_a_write_with_an_old_token_is_refused_in_each_durability_mode",
    ),
    Bug(
        "a claim does not raise the token",
        "token = token + 1, attempts = attempts + 1, poked = 0, {continued}, worker = :worker, "
        "driven = :driven",
        "token = max(token, 1), attempts = attempts + 1, poked = 0, {continued}, worker = :worker, "
        "driven = :driven",
        "test_fence.py::test_a_driver_that_wakes_while_its_successor_drives_writes_nothing",
    ),
    Bug(
        "leases are not renewed",
        "UPDATE perdure_runs SET due_at = :until, lease_until = :lease_until WHERE id IN (SELECT "
        "id FROM mine);",
        "UPDATE perdure_runs SET lease_until = lease_until WHERE id IN (SELECT id FROM mine);",
        "test_takeover.py::test_a_second_worker_that_starts_never_disturbs_a_live_run",
    ),
    Bug(
        "a lease of this host is believed over when the wall clock is set",
        "WHERE due_at <= :now AND graph || '@' || version IN ({names}) AND NOT {held} AND :suspect "
        "= CASE WHEN state = 'running' AND attempts >= 2 THEN 1 ELSE 0 END AND (CAST(:only",
        "WHERE due_at <= :now AND graph || '@' || version IN ({names}) AND :suspect "
        "= CASE WHEN state = 'running' AND attempts >= 2 THEN 1 ELSE 0 END AND (CAST(:only",
        "test_clocks.py::test_a_clock_that_is_set_forward_takes_no_run_from_a_live_worker_of_this_"
        "host",
    ),
    Bug(
        "the runs of a dead worker are not taken before their lease is over",
        "SET due_at = CASE WHEN due_at > :now THEN CAST(:now AS BIGINT) ELSE due_at END, "
        "lease_until = 0",
        "SET lease_until = 0",
        "test_takeover.py::test_a_worker_killed_on_this_host_is_replaced_at_once",
    ),
    Bug(
        "a lost worker is not counted",
        "token = token + 1, attempts = attempts + 1, poked = 0, {continued}, worker = :worker, "
        "driven = :driven",
        "token = token + 1, attempts = max(attempts, 1), poked = 0, {continued}, worker = :worker, "
        "driven = :driven",
        "test_takeover.py::test_a_run_that_kills_its_workers_is_held_and_the_others_finish",
    ),
    Bug(
        "attempts are not reset by a step",
        "attempts = 1, begun = 1, events = events + 1",
        "begun = 1, events = events + 1",
        "test_retries.py::test_a_step_on_disk_begins_the_count_of_attempts_anew",
    ),
    Bug(
        "a failed segment is driven again at once",
        "return min(self.longest, self.first * self.factor ** (attempts - 1))",
        "return timedelta(0)",
        "test_retries.py::test_a_failed_segment_is_driven_again_after_a_pause_that_survives_the_"
        "process",
    ),
    Bug(
        "a driven run is not told that it is cancelled",
        "control = CASE WHEN state = 'running' OR (:control = 'cancel' AND {undo})",
        "control = CASE WHEN (:control = 'cancel' AND {undo})",
        "test_stopping.py::test_a_driven_run_is_cancelled_after_the_step_it_is_in",
    ),
    Bug(
        "a step that does not end outlives its grace",
        "return drive.grace[1] <= here",
        "return False",
        "test_stopping.py::test_a_step_that_does_not_end_is_stopped_after_the_grace",
    ),
    # -- events
    Bug(
        "the event of a step is lost",
        "WHEN state = 'pending' THEN 'released' ELSE state END, CAST(:change AS BIGINT), "
        "CAST(:body AS {blob}) FROM perdure_runs WHERE thread_id = :thread_id AND id = :id "
        "AND change = :change",
        "WHEN state = 'pending' THEN 'released' ELSE state END, CAST(:change AS BIGINT), "
        "CAST(:body AS {blob}) FROM perdure_runs WHERE thread_id = :thread_id AND id = :id "
        "AND change = :change AND :kind <> 'step'",
        "test_accepting.py::test_events_are_paged_and_numbered_without_a_gap",
    ),
    Bug(
        "an event can be changed",
        "BEGIN SELECT RAISE(ABORT, 'perdure: an event is never changed'); END",
        "BEGIN SELECT 1; END",
        "test_events.py::test_no_statement_changes_an_event",
    ),
    # -- effects
    Bug(
        "an intent is not awaited before the call",
        "if self.spec.reads and not task.is_sync:",
        "if not task.is_sync:",
        "test_effects.py::test_with_the_saver_alone_the_checkpoint_and_the_intent_are_on_disk_before"
        "_the_call",
    ),
    Bug(
        "a call with an outcome on record is made again",
        "return call.replay_result()",
        "return (yield from _attempts(call, call.arguments))",
        "test_effects.py::test_a_process_that_fails_after_an_effect_does_not_call_it_again",
    ),
    Bug(
        "a late outcome replaces that of the call that took over",
        "AND n = :n AND intent = :intent AND state = 'open' RETURNING n;",
        "AND n = :n RETURNING n;",
        "test_effect_crash.py::test_two_processes_with_only_the_saver_call_an_effect_with_one_key",
    ),
    Bug(
        "a call that was cut off is made again, although it holds",
        'elif spec.unknown == "hold" and not has_failed and not spec.transactional:',
        'elif spec.unknown == "never":',
        "test_unknown_outcomes.py::test_a_process_that_is_killed_in_a_careful_call_leaves_it_to_a_"
        "person",
    ),
    Bug(
        "the far side is not asked about a call that was cut off",
        'answer = yield from _verify(call, arguments, "it was interrupted")',
        "answer = None",
        "test_unknown_outcomes.py::test_the_far_side_is_asked_what_became_of_it",
    ),
    Bug(
        "a call is made again with other arguments than the recorded ones",
        "arguments = call.recorded_arguments() if spec.verify is not None:",
        "arguments = call.arguments\n    if spec.verify is not None:",
        "test_unknown_outcomes.py::test_it_is_called_again_with_the_same_key_and_the_recorded_"
        "arguments",
    ),
    Bug(
        "a business key is of one run only",
        'scope, task_id, match = f"key {key}", "", Match(0, None)',
        'scope, task_id, match = f"key {key} {owner.run_id}", "", Match(0, None)',
        "test_business_keys.py::test_two_runs_with_one_key_make_one_call_and_both_get_its_outcome",
    ),
    Bug(
        "compensations are made in the order of the effects",
        "for row in sorted(rows, key=lambda row: row.settled, reverse=True):",
        "for row in sorted(rows, key=lambda row: row.settled):",
        "test_compensation.py::test_a_run_that_waits_is_undone_in_reverse_order",
    ),
    Bug(
        "a settled effect does not release its run",
        "OR change = CAST(:decision AS BIGINT) AND NOT EXISTS (",
        "OR change < 0 AND NOT EXISTS (",
        "test_unknown_outcomes.py::test_a_person_settles_it_and_the_run_goes_on_by_itself",
    ),
    Bug(
        "the writes of an effect stay although its lease was lost",
        "SET token = CASE WHEN token = :token AND state = 'running' THEN token ELSE {refuse} END, "
        "attempts = CASE",
        "SET token = CASE WHEN state = 'running' THEN token ELSE {refuse} END, attempts = CASE",
        "test_transactional.py::test_a_lease_that_is_lost_while_it_is_called_takes_the_writes_back",
    ),
    Bug(
        "an evaluation calls what no rule names",
        "return (REAL,) if reads else self.effects.get(ANY, (REFUSE,))",
        "return (REAL,)",
        "test_evaluation.py::test_an_effect_is_refused_by_name_however_it_is_called",
    ),
    # -- waits, answers, signals
    Bug(
        "an answer is applied twice",
        "SET state = 'answered', answer = :answer, answered_at = :answered_at, answered_by = :by, "
        "change = :change WHERE thread_id = :thread_id AND id = :wait_id AND state = 'open'",
        "SET state = 'answered', answer = :answer, answered_at = :answered_at, answered_by = :by, "
        "change = :change WHERE thread_id = :thread_id AND id = :wait_id AND state <> 'closed'",
        "test_answers.py::test_of_twenty_answers_at_once_from_two_runtimes_exactly_one_wins",
    ),
    Bug(
        "a wait of the clock is due early",
        "AND (:timed = 0 OR COALESCE(wake_at, expires_at) <= :now);",
        "AND (:timed = 0 OR COALESCE(wake_at, expires_at) <= :now + 1000);",
        "test_clocks.py::test_a_sleep_ends_at_its_time_and_not_a_millisecond_before",
        also=(
            (
                "ELSE (SELECT min(COALESCE(w.wake_at, w.expires_at)) FROM perdure_waits AS w",
                "ELSE (SELECT min(COALESCE(w.wake_at, w.expires_at)) - 1000 FROM perdure_waits w",
            ),
        ),
    ),
    Bug(
        "a wait is not stored with the interrupt",
        "SELECT r.graph FROM perdure_runs AS r WHERE r.thread_id = :thread_id AND r.id = :id)) ON "
        "CONFLICT (thread_id, id) DO UPDATE",
        "SELECT r.graph FROM perdure_runs AS r WHERE r.thread_id = :thread_id AND r.id = :id)) ON "
        "CONFLICT (thread_id, id) DO NOTHING; --",
        "test_waits.py",
    ),
    Bug(
        "an answer does not make its run due",
        "due_at = CASE WHEN :wakes = 1 AND state = 'waiting' AND COALESCE(due_at, :now) >= :now "
        "THEN :now ELSE due_at END, updated_at",
        "updated_at",
        "test_answers.py::test_answers_race_with_drivers_and_none_is_lost",
    ),
    Bug(
        "an answer to what was shown before counts for what is shown now",
        "AND id <> :wait_id AND state IN ('open', 'answered');",
        "AND id <> :wait_id AND state IN ('closed');",
        "test_answers.py::test_an_answer_given_while_its_question_changes_is_not_taken_for_the_new"
        "_one",
    ),
    Bug(
        "an answer is not compared with the schema",
        "if schema is not None: check_answer(wait_id, schema, answer)",
        "pass",
        "test_answers.py::test_an_answer_that_does_not_fit_is_refused_and_changes_nothing",
    ),
    Bug(
        "an answer is not compared with the dialect of its question",
        "if problem := _problem(dialect, as_json(answer)):",
        "if problem := '':",
        "test_dialects.py::test_an_answer_fits_its_dialect",
    ),
    Bug(
        "a signal is taken twice",
        "WHERE thread_id = :thread_id AND name = :name AND wait_id IS NULL ORDER BY sent_at, id",
        "WHERE thread_id = :thread_id AND name = :name ORDER BY sent_at, id",
        "test_signals.py::test_one_signal_goes_to_exactly_one_of_two_branches",
    ),
    Bug(
        "a signal with a used key is kept again",
        "VALUES (:thread_id, :signal_id, :name, :key, :now, :body) ON CONFLICT DO NOTHING;",
        "VALUES (:thread_id, :signal_id, :name, NULL, :now, :body) ON CONFLICT DO NOTHING;",
        "test_signals.py::test_of_signals_with_one_key_from_two_runtimes_exactly_one_is_kept",
    ),
    Bug(
        "what a node read is not recorded",
        "VALUES (:thread_id, :id, :task, :n, :body) ON CONFLICT DO NOTHING;",
        "SELECT :thread_id, :id, :task, :n, :body WHERE FALSE ON CONFLICT DO NOTHING;",
        "test_reads.py::test_reads_are_the_same_for_another_process",
    ),
    # -- messages, schedules, children
    Bug(
        "a delivered message is not deleted",
        "DELETE FROM perdure_outbox WHERE thread_id = :thread_id AND id = :id;",
        "DELETE FROM perdure_outbox WHERE thread_id = :thread_id AND id = '';",
        "test_outbox.py::test_a_handler_that_raises_gets_it_again_later_with_the_same_id",
    ),
    Bug(
        "a message that could not be delivered is forgotten",
        "UPDATE perdure_outbox SET due_at = :due_at, error = :error WHERE thread_id = :thread_id "
        "AND id = :id AND CASE WHEN CAST(:change AS BIGINT) IS NULL THEN due_at <= :due_at "
        "ELSE change = CAST(:change AS BIGINT) END;",
        "DELETE FROM perdure_outbox WHERE thread_id = :thread_id AND id = :id;",
        "test_outbox.py::test_a_handler_that_raises_gets_it_again_later_with_the_same_id",
    ),
    Bug(
        "the signature of a webhook is not compared",
        "if not any(hmac.compare_digest(one, other) for one in expected for other in received):",
        "if not expected:",
        "test_webhooks.py::test_a_webhook_from_another_service_is_a_signal_if_its_signature_is_valid",
    ),
    Bug(
        "a slot has no key",
        'own, "enqueue", key=key))',
        'own, "enqueue", key=None))',
        "test_schedules.py::test_a_crash_between_the_start_and_the_move_starts_no_second_run",
    ),
    Bug(
        "the end of a child does not wake its parent",
        "WHERE j.joined_thread = :thread_id AND {joined});",
        "WHERE j.joined_thread = '' AND {joined});",
        "test_children.py::test_the_end_of_a_child_and_the_wake_up_of_its_parent_are_one_commit",
    ),
    Bug(
        "a child of a run that is being cancelled is started",
        "(SELECT 'cancel' FROM perdure_runs AS p WHERE p.id = CAST(:parent_id AS TEXT) AND "
        "p.control = 'cancel' AND :ignores_parent_cancel = 0),",
        "CAST(NULL AS TEXT),",
        "test_children.py::test_a_child_started_by_a_run_that_is_being_cancelled_is_cancelled",
    ),
    # -- code changes
    Bug(
        "a changed graph is not noticed",
        "if row.fingerprint is None: return graph, None",
        "if row: return graph, None",
        "test_code_changes.py::test_a_run_is_held_when_the_node_it_waits_in_is_gone",
    ),
    # -- storage
    Bug(
        "the base of a difference is not guarded",
        "SELECT CASE WHEN (CAST(:base AS TEXT) IS NULL OR EXISTS (",
        "SELECT CASE WHEN (CAST(:base AS TEXT) IS NULL OR TRUE OR EXISTS (",
        "test_shared_journal.py::test_a_checkpoint_is_not_stored_on_a_base_that_is_gone",
    ),
    Bug(
        "a type that nobody allowed is loaded",
        "if self._types.isdisjoint({(module, plain), (module, last)}):",
        "if not module:",
        "test_damaged_values.py::test_a_forged_row_is_an_error_and_runs_nothing",
    ),
    Bug(
        "the checksum of a row is not compared",
        "if blob[:1] != bytes([_CHECKSUM[placed]]) or blob[1:5] != checksum:",
        "if blob[:1] != bytes([_CHECKSUM[placed]]):",
        "test_damaged_values.py::test_flipped_bits_are_damage_never_a_wrong_value",
    ),
    Bug(
        "encryption is not bound to its row",
        "encrypt(nonce, data, bound.encode())",
        'encrypt(nonce, data, b"")',
        "test_moved_rows.py::test_a_blob_in_any_other_row_of_its_kind_is_refused",
        also=(("blob[end + 12 :], bound.encode())", 'blob[end + 12 :], b"")'),),
    ),
    Bug(
        "a checksum does not say which row it is of",
        "zlib.crc32(data, zlib.crc32(bound.encode()))",
        "zlib.crc32(data)",
        "test_moved_rows.py::test_a_blob_in_any_other_row_of_its_kind_is_refused",
        also=(("zlib.crc32(blob[5:], zlib.crc32(bound.encode()))", "zlib.crc32(blob[5:])"),),
    ),
    Bug(
        "plain text is read although there are keys",
        'raise WrongKey(name, "it is not encrypted, and plaintext',
        'return blob[5:] or WrongKey(name, "it is not encrypted, and plaintext',
        "test_encryption.py::test_a_row_in_plaintext_is_refused_when_keys_are_set",
    ),
    Bug(
        "a constructor runs when a value is loaded",
        "value = object.__new__(cls) set_attributes(value, fields)",
        "value = cls(**fields)",
        "test_stored_values.py::test_no_constructor_validator_or_post_init_runs",
    ),
    Bug(
        "an argument that is named like a secret is stored",
        "and not is_secret(name) and not is_secret_value(value)",
        "and not is_secret_value(value)",
        "test_secrets.py::test_secrets_are_in_no_row_and_come_from_the_present_call",
    ),
    Bug(
        "retention deletes what ended just now",
        "SELECT thread_id, id, state, created_at, updated_at, CASE WHEN state = 'cancelled' AND",
        "SELECT thread_id, id, state, created_at, 0, CASE WHEN state = 'cancelled' AND",
        "test_deleting.py::test_a_tick_deletes_what_ended_long_enough_ago_and_nothing_else",
    ),
    Bug(
        "erasing leaves the signals of a thread",
        '"effects", "signals", "outbox", "schedules", "losses", "thread")',
        '"effects", "outbox", "schedules", "losses", "thread")',
        "test_erasing.py::test_nothing_of_an_erased_thread_is_left_in_any_table",
        also=(
            (
                "OR EXISTS (SELECT 1 FROM perdure_signals AS l WHERE l.thread_id = :thread_id)",
                "",
            ),
        ),
    ),
    Bug(
        "a new file can be read by everybody",
        "os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600",
        "os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666",
        "test_storage.py::test_the_files_of_a_new_journal_are_for_their_owner_alone",
    ),
    Bug(
        "a newer schema is used",
        "if current > known: raise SchemaTooNew(current, known)",
        "pass",
        "test_migrations.py::test_a_newer_schema_is_refused_and_not_touched",
    ),
    # -- serving
    Bug(
        "every token may do everything",
        "if not self.may(scope): message =",
        "if not scope:\n            message =",
        "test_serving.py::test_every_endpoint_that_is_not_public_requires_a_scope",
    ),
]


def pattern(text: str) -> re.Pattern[str]:
    """The text with any white space between its words."""
    return re.compile(r"\s+".join(map(re.escape, text.split())))


def places(text: str) -> list[Path]:
    """The files in which a text is, once for each time."""
    wanted, found = pattern(text), list[Path]()
    for file in sorted((ROOT / "src").rglob("*")):
        if file.suffix in (".py", ".sql"):
            found += [file] * len(wanted.findall(file.read_text()))
    return found


def plant(bug: Bug, source: Path) -> None:
    """Put a bug into a copy of `src`."""
    for text, instead in ((bug.text, bug.instead), *bug.also):
        [place] = places(text)
        file = source / place.relative_to(ROOT / "src")
        found = pattern(text).search(content := file.read_text())
        assert found is not None
        file.write_text(content[: found.start()] + instead + content[found.end() :])


def is_found(bug: Bug, source: Path) -> str:
    """What its test says of a bug: `found`, `not found`, or why neither can be said."""
    file, _, name = bug.test.partition("::")
    chosen = [f"tests/contract/{bug.test}"] if name else [f"tests/contract/{file}"]
    command = [sys.executable, "-m", "pytest", *chosen, "-q", "-x", "-p", "no:cacheprovider"]
    command += ["-p", "no:xdist", "-m", bug.database, "--no-header", "-rfE"]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return "found: the test hangs"
    last = [
        line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR", "E  "))
    ]
    why = last[0][:160] if last else ""
    if done.returncode == 1:
        return f"found: {why}"
    return "not found" if done.returncode == 0 else f"no answer: {done.stdout[-400:]}"


def main(*wanted: str) -> int:
    """Plant each bug whose name has one of these words, and tell whether its test finds it."""
    missed = 0
    chosen = [bug for bug in BUGS if not wanted or any(one in bug.name for one in wanted)]
    for bug in chosen:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "src"
            shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
            plant(bug, source)
            began = time.monotonic()
            verdict = is_found(bug, source)
        missed += not verdict.startswith("found")
        print(f"{bug.name}: {verdict} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} bugs were found.")
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
