-- The application's own tables, in the same database as the journal. Times are milliseconds since
-- 1970, as in the journal.

-- `gaps` are the days before each touch, `days` the weekdays (0 is Monday) and `opens` and `closes`
-- the local times between which a mail may go out. `state` is `running`, `paused` (by a person),
-- `trouble` (by the application; `trouble` has the reason) or `stopped` for good.
CREATE TABLE IF NOT EXISTS campaigns (
  id           BIGINT NOT NULL PRIMARY KEY,
  name         TEXT NOT NULL UNIQUE,
  sender       TEXT NOT NULL,
  brief        TEXT NOT NULL,
  gaps         TEXT NOT NULL,
  days         TEXT NOT NULL,
  opens        TEXT NOT NULL,
  closes       TEXT NOT NULL,
  auto_approve INTEGER NOT NULL,
  state        TEXT NOT NULL,
  trouble      TEXT NOT NULL
);

-- One row per address. `person` is the address without what follows a plus: bo+news@ is bo@. `token`
-- is random, and in the contact's unsubscribe address and link. The status is `active`, `bounced`,
-- `unsubscribed` or `removed`.
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

-- Who opted out, contact or not.
CREATE TABLE IF NOT EXISTS suppressions (
  person TEXT NOT NULL PRIMARY KEY,
  at     BIGINT NOT NULL
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

-- A mail to a contact: `draft_pending` until a person approves it, `approved`, then `sent`, `skipped`,
-- `refused` (there is no such address) or `stopped` (the thread ended first). `attempt` is the last
-- conversation with the mail server about it, begun or continued at `attempt_at`: an older one that
-- wakes up late finds that it is not its turn. `tries` counts the conversations that failed.
-- `problem` is the kind of the last refusal, `response` the server's words, `problem_at` when the first
-- of that kind in a row came; `refusals` counts those of any kind since `refused_at`.
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
  attempt        TEXT NOT NULL DEFAULT '',
  attempt_at     BIGINT NOT NULL DEFAULT 0,
  tries          INTEGER NOT NULL DEFAULT 0,
  problem        TEXT NOT NULL DEFAULT '',
  problem_at     BIGINT,
  response       TEXT NOT NULL DEFAULT '',
  refusals       INTEGER NOT NULL DEFAULT 0,
  refused_at     BIGINT,
  sent_at        BIGINT,
  outcome        REAL,
  PRIMARY KEY (campaign_id, contact_id, step)
);
CREATE INDEX IF NOT EXISTS touches_message ON touches (message_id);
CREATE INDEX IF NOT EXISTS touches_sent ON touches (campaign_id, sent_at);

-- What came in, once per Message-ID and author: `id` is a hash of these. Its kind is `reply`, `bounce`,
-- `unsubscribe`, `automatic` (it ends nothing) or `stray` (it matches nothing: a person decides).
-- `persons` is a JSON list of those it ends; `run_id` and `step` are the touch that earned it. `late`
-- says that the thread was over by then, so that the receiver scores the touch. `signalled` says
-- that the threads it ends know.
CREATE TABLE IF NOT EXISTS messages (
  id          TEXT NOT NULL PRIMARY KEY,
  kind        TEXT NOT NULL,
  address     TEXT NOT NULL,
  contact_id  BIGINT,
  persons     TEXT NOT NULL,
  run_id      TEXT,
  step        INTEGER,
  late        INTEGER NOT NULL,
  received_at BIGINT NOT NULL,
  subject     TEXT NOT NULL,
  text        TEXT NOT NULL,
  signalled   INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS messages_waiting ON messages (received_at) WHERE signalled = 0;

-- How far a mailbox was read over IMAP: up to `uid`, as long as its UIDVALIDITY is `validity`. Mail
-- that arrived before the day of `since` is not read.
CREATE TABLE IF NOT EXISTS mailboxes (
  name     TEXT NOT NULL PRIMARY KEY,
  validity BIGINT NOT NULL,
  uid      BIGINT NOT NULL,
  since    BIGINT NOT NULL
);
