"""Outgoing webhooks: messages of the outbox become signed HTTP requests.

sender       the receivers of the outbox's topics: which endpoint, which content, when to retry
contents     what is sent about a run or a question
signatures   Standard Webhooks: signs requests, and verifies incoming ones
posting      one POST to a public address, without redirects
"""
