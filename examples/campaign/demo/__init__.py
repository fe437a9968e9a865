"""The month of `make demo`, which tests live through too: nothing here is for copying.

postoffice    a mail server that fails on demand; also a program of its own
clock         the clock that all processes share
plan          what happens in the month, drawn from a seed
conductor     makes it happen, and judges the result
crew          worker processes that are killed
months        the campaign application as the conductor sees it; stock: the same without perdure
play d1       the demos
"""
