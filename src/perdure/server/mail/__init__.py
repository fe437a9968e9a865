"""Outgoing mail: messages of the outbox become letters, one for each recipient.

sender       the receiver of the outbox's mail topic: whom a message is for, what it says
letters      a message as MIME: the headers, plain text and HTML
handing_over one SMTP conversation, with a time limit, and what its replies mean
"""
