"""An e-mail campaign in which each (campaign, contact) is one durable thread.

Up to six touches over about a month. It stops the instant the prospect replies, holds each draft
for a person's approval, and never sends a touch twice, whoever kills whatever. `README.md` says how
to run it; the tutorial in the project's docs builds it step by step.

    agent        the graph, and its effects         cadence          when the next touch is due
    app          the application put together       sheet contacts   CSV files, their import
    control      pause, resume, stop, edit          preview          what an edit would change
    people       change, unbounce, remove           erasure          nothing of a person is left
    drafts       approval in bulk                   overlaps         what other campaigns mean
    inbound      mail that comes in                 mail lookup      sending; asking what arrived
    mailbox      where a mailbox was read up to     imap             reading it, changing nothing
    records      what the tables are asked          reading          what an incoming mail means
    letter       a letter as a mail                 refusals         what a server's no means
    messages     what a mail that came in ends      unsubscribing    who asks for no more mail
    strays       mail that matches nothing          web              the page to unsubscribe
    writer       who writes the drafts              database         batches of statements
    settings     what the environment says          schema.sql       the tables
    service      for workers and web servers        __main__         the command line
    demo         a month in a minute, beside what stock LangGraph makes of it; demo.d1: on D1
    postoffice desk faults   a mail server that fails as it is told
"""
