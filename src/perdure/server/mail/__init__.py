"""Outgoing mail: messages of the outbox are sent as mail, one to each recipient.

sender       the receiver of the outbox's mail topic: recipient and content of a message
letters      a message as MIME: headers, plain text and HTML
handing_over one SMTP conversation, with a time limit, and what its replies mean
"""
