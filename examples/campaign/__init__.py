"""An e-mail campaign in which each (campaign, contact) pair is one durable thread.

Up to six touches over about a month. It stops the instant the prospect replies, holds each draft
for a person's approval, and never sends a touch twice, whatever is killed. `README.md` says how to
run it; the tutorial in the project's docs builds it step by step.

One thread
    agent           the graph: check, compose, approve, send, sleep
    sending         one try to send a touch, and its outcome
    cadence         when the next touch may go out
    writer          the model that writes the drafts

Mail
    mail            a letter, the SMTP conversation, and the provider's look-up
    refusals        what a server's refusal means
    incoming        what an incoming mail means
    inbound         stores it and ends what it ends; from a mail server or a mailbox
    web             the unsubscribe page

Campaigns
    app             create, import, launch, pause, resume, stop, status
    contacts        import from CSV
    records         statements on the tables of schema.sql
    database        batches of statements on SQLite, PostgreSQL and D1
    settings        settings from the environment
    service         for workers and web servers
    __main__        the command line

For trying and testing, not for copying
    demo            a month in a minute, with a mail server that fails on demand
"""
