"""Webhooks and mail: the messages of the outbox that perdure itself delivers, from any worker.

webhooks     what is sent to which endpoint about a run or a question, and when to retry
posting      one POST to a public address, without redirects
mail         which recipient gets which mail; the SMTP conversation, and what the replies mean
"""
