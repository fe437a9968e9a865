"""What perdure costs beside stock LangGraph and DBOS: `python -m bench`, or `make bench`.

Every measurement runs all contenders in one go, interleaved round by round, so that whatever
else the machine does hits all of them. Ratios are the result; absolute times are orientation only.

A file per measurement: `steps` `stored` `turns` `load` `crowd` `fsyncs` `imports` of the saver,
`accept` `drive` `recovery` `due` `sleepers` of the runtime, whose workers are processes, `commits`
`effects` `agent` of its effects, `observing` of its metrics and traces, `d1` of the journal on
Cloudflare D1. Each has one function that takes a `Bench` and returns a `Section`: tables, and the
bars it can judge.
"""
