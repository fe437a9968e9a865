"""Outgoing mail: messages of the outbox are sent as mail, one to each recipient.

sender  the receiver of the outbox's mail topic: recipient and content of a message
smtp    a mail as bytes, the SMTP conversation that sends it, and what the replies mean
"""
