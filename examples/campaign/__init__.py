"""An e-mail campaign in which each (campaign, contact) pair is one durable thread.

Up to six touches over about a month. It stops the instant the prospect replies, holds each draft
for a person's approval, and never sends a touch twice, whatever is killed. `README.md` says how to
run it; the tutorial in the project's docs builds it step by step.

One thread
    agent           the graph: check, compose, approve, send, sleep
    sending         one try to send a touch, and its outcome
    cadence         when the next touch is due
    turns           when it may go out, within limits that campaigns share
    writer          the model that writes the drafts

Outgoing mail
    letter          a letter, and the mail it becomes
    mail            the conversation with the mail server
    refusals        what a server's refusal means
    trouble         refusals that stop a campaign, and the question to a person
    lookup          asks the provider whether a mail arrived

Incoming mail
    inbound         matches and stores mail, and signals threads; an SMTP or LMTP server
    mailbox imap    the same for a mailbox read over IMAP
    reading         what a mail means; its text is from mailtext and markup
    quoting         the author's own words in it
    unsubscribing   recognises opt-outs in words
    web             the unsubscribe page
    messages        what a mail ends
    strays          mail that matches nothing

Campaigns and people
    app             the application: create, import, launch, status
    control         pause, resume, stop, edit; preview shows what an edit would change
    drafts          approval in bulk
    overlaps        how other campaigns affect one
    contacts        import from CSV, which sheet reads
    people          change, remove, unbounce; erasure deletes everything about a person
    identity        which addresses are one person's; mentions: where others name them

Underneath
    records         queries on the tables of schema.sql
    database        batches of statements on SQLite, PostgreSQL and D1
    errors          errors that several modules raise
    settings        settings from the environment
    service         for workers and web servers
    commands        the command line, started by __main__

For trying and testing, not for copying
    demo            a month in a minute, beside stock LangGraph; demo.d1: on D1
    clock           the clock that its processes share
    postoffice      a mail server that fails on demand; with desk and faults
"""
