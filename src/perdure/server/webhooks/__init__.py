"""Webhooks out: how messages of the outbox become signed HTTP requests.

sender       the receivers of the outbox's topics: which endpoint, which content, when again
contents     what is sent about a run or a question
signatures   Standard Webhooks: made here, and checked for signals that come in
posting      one POST to a public address, without redirects
"""
