-- The application's own tables, in the same database as the journal. Times are milliseconds since
-- 1970, as in the journal.

-- `sequence` names what is said: campaigns of one sequence never mail a contact the same step twice.
-- `gaps` are the days before each touch, `days` the weekdays (0 is Monday) and `opens` and `closes`
-- the local times between which a mail may go out. It sends nothing more on a day on which its sender's
-- address has sent `per_day` mails, of whatever campaign; 0 is no limit. `state` is `running`, `paused` (by a person), `trouble` (by the application,
-- which asks a person; `trouble` has the reason, and `troubles` counts them) or `stopped` for good.
-- `version` counts the changes that people made.
CREATE TABLE IF NOT EXISTS campaigns (
  id           BIGINT NOT NULL PRIMARY KEY,
  name         TEXT NOT NULL UNIQUE,
  sequence     TEXT NOT NULL,
  sender       TEXT NOT NULL,
  brief        TEXT NOT NULL,
  gaps         TEXT NOT NULL,
  days         TEXT NOT NULL,
  opens        TEXT NOT NULL,
  closes       TEXT NOT NULL,
  auto_approve INTEGER NOT NULL,
  per_day      INTEGER NOT NULL,
  state        TEXT NOT NULL,
  trouble      TEXT NOT NULL,
  troubles     INTEGER NOT NULL,
  version      INTEGER NOT NULL
);

-- One row per address, whatever campaign or file it came from. `person` is the address without what
-- follows a plus: bo+news@ is bo@. `token` is random, and in the contact's unsubscribe links. The
-- status is `active`, `bounced`, `unsubscribed` or `removed`.
CREATE TABLE IF NOT EXISTS contacts (
  id      BIGINT NOT NULL PRIMARY KEY,
  address TEXT NOT NULL UNIQUE,
  person  TEXT NOT NULL,
  token   TEXT NOT NULL UNIQUE,
  name    TEXT NOT NULL,
  company TEXT NOT NULL,
  zone    TEXT NOT NULL,
  status  TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS contacts_person ON contacts (person);

-- The persons of addresses that a contact had before. What is asked about one of them concerns the
-- contact as well (identity.py).
CREATE TABLE IF NOT EXISTS former_addresses (
  person     TEXT NOT NULL,
  contact_id BIGINT NOT NULL,
  PRIMARY KEY (person, contact_id)
);
CREATE INDEX IF NOT EXISTS former_addresses_contact ON former_addresses (contact_id);

-- Who must not be written to, contact or not: a hash of the person, so that nothing else is kept of
-- somebody who was erased. `why` is `unsubscribed` or `erased`.
CREATE TABLE IF NOT EXISTS suppressions (
  hash TEXT NOT NULL PRIMARY KEY,
  why  TEXT NOT NULL,
  at   BIGINT NOT NULL
);

-- A contact in a campaign: one thread, `campaign-{campaign_id}-{contact_id}`. Its status is `active`,
-- or how it ended: `replied`, `bounced`, `unsubscribed`, `removed`, `stopped`, `finished`. Sending
-- and receiving both change this row first, so one of them comes first.
CREATE TABLE IF NOT EXISTS members (
  campaign_id BIGINT NOT NULL,
  contact_id  BIGINT NOT NULL,
  status      TEXT NOT NULL,
  PRIMARY KEY (campaign_id, contact_id)
);

CREATE INDEX IF NOT EXISTS members_contact ON members (contact_id);

-- A mail to a contact: `draft_pending` until a person approves it, `approved`, then `sent`,
-- `skipped`, `duplicate` (another campaign of the sequence sent it), `refused` (the far side said no)
-- or `stopped` (the prospect was faster, or the thread ended otherwise). `attempt` is the last
-- conversation with the mail server about it, begun at `attempt_at`: an older one that wakes up late
-- finds that it is not its turn.
-- `tries` counts the conversations that came to nothing. `problem` is what kind of no the last one was,
-- `said` the server's words, `refused` how many of that kind came in a row, and `refused_at` when the
-- first of any kind came. `hopeless` says that a person is to be asked instead of trying it again.
-- `outcome` is 1.0 if it earned a reply, 0.0 if not.
CREATE TABLE IF NOT EXISTS touches (
  campaign_id    BIGINT NOT NULL,
  contact_id     BIGINT NOT NULL,
  step           INTEGER NOT NULL,
  status         TEXT NOT NULL,
  subject        TEXT NOT NULL,
  body           TEXT NOT NULL,
  prompt_version TEXT NOT NULL,
  run_id         TEXT NOT NULL,
  message_id     TEXT NOT NULL,
  drafted_at     BIGINT NOT NULL,
  attempt        TEXT,
  attempt_at     BIGINT,
  tries          INTEGER NOT NULL DEFAULT 0,
  refused        INTEGER NOT NULL DEFAULT 0,
  refused_at     BIGINT,
  hopeless       INTEGER NOT NULL DEFAULT 0,
  problem        TEXT NOT NULL DEFAULT '',
  said           TEXT NOT NULL DEFAULT '',
  sent_at        BIGINT,
  outcome        REAL,
  PRIMARY KEY (campaign_id, contact_id, step)
);
CREATE INDEX IF NOT EXISTS touches_message ON touches (message_id);
CREATE INDEX IF NOT EXISTS touches_problem ON touches (campaign_id, problem);

-- When an approved touch goes out: from `at` until just before `until`, its turn. Without `until` it is an
-- appointment from `at` to `ends`, at which its thread asks for a turn. `person` and `sequence` keep
-- mails of different sequences to one person apart, `sender` and `day` are counted for the daily limit,
-- and `place` is the order in which touches wait for the recipient's domain.
CREATE TABLE IF NOT EXISTS bookings (
  campaign_id BIGINT NOT NULL,
  contact_id  BIGINT NOT NULL,
  step        INTEGER NOT NULL,
  person      TEXT NOT NULL,
  sequence    TEXT NOT NULL,
  domain      TEXT NOT NULL,
  sender      TEXT NOT NULL,
  day         TEXT NOT NULL,
  place       BIGINT NOT NULL,
  at          BIGINT NOT NULL,
  ends        BIGINT NOT NULL,
  until       BIGINT,
  PRIMARY KEY (campaign_id, contact_id, step)
);
CREATE INDEX IF NOT EXISTS bookings_domain ON bookings (domain, at);
CREATE INDEX IF NOT EXISTS bookings_place ON bookings (domain, place);
CREATE INDEX IF NOT EXISTS bookings_day ON bookings (sender, day);
CREATE INDEX IF NOT EXISTS bookings_person ON bookings (person, at);

-- What came in, once per Message-ID and author, and once more if a copy of it is an unsubscription:
-- `id` is a hash of these.
-- Its kind is `reply`, `bounce`, `unsubscribe`, `automatic` (an out-of-office note, which ends
-- nothing), `stray` (it matches nothing) or `dismissed` (a stray that a person has put away, or our own
-- mail come back: only its id is kept). `read_as` is the kind that its content makes it, also if it is a stray.
-- `run_id` and `step` are the touch it answers; `late` says that the thread was over, so that the
-- receiver scores the touch. `told` says that its threads were signalled.
CREATE TABLE IF NOT EXISTS messages (
  id          TEXT NOT NULL PRIMARY KEY,
  kind        TEXT NOT NULL,
  read_as     TEXT NOT NULL,
  address     TEXT NOT NULL,
  contact_id  BIGINT,
  run_id      TEXT,
  step        INTEGER,
  late        INTEGER NOT NULL,
  received_at BIGINT NOT NULL,
  subject     TEXT NOT NULL,
  text        TEXT NOT NULL,
  told        INTEGER NOT NULL
);

CREATE INDEX IF NOT EXISTS messages_untold ON messages (received_at) WHERE told = 0;
CREATE INDEX IF NOT EXISTS messages_kind ON messages (kind, received_at);

-- Whom a message ends: the contact whose mail it answers, and its writer, under all of their addresses.
CREATE TABLE IF NOT EXISTS message_contacts (
  message_id TEXT NOT NULL,
  contact_id BIGINT NOT NULL,
  PRIMARY KEY (message_id, contact_id)
);
CREATE INDEX IF NOT EXISTS message_contacts_contact ON message_contacts (contact_id);

-- How far a mailbox was read over IMAP (mailbox.py): up to `uid`, as long as its UIDVALIDITY is `validity`.
-- Mails of before the day of `since` are not read. Everything that was there at `read_at` has been read.
CREATE TABLE IF NOT EXISTS mailboxes (
  name     TEXT NOT NULL PRIMARY KEY,
  validity BIGINT NOT NULL,
  uid      BIGINT NOT NULL,
  since    BIGINT NOT NULL,
  read_at  BIGINT NOT NULL
);
