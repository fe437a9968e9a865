"""What perdure costs next to stock LangGraph and DBOS: `python -m bench`, or `make bench`.

Every measurement runs all contenders in one go, interleaved round by round, so that a busy machine
affects all of them. Ratios are the result. Absolute times depend on the machine.

A file per measurement: `steps` `stored` `turns` `load` `crowd` `fsyncs` `imports` of the saver,
`accept` `drive` `recovery` `due` `sleepers` of the runtime, whose workers are processes, `commits`
`effects` `agent` of its effects, `observing` of its metrics and traces, `reflections` of its
memory, `server` and `ui` of its server and pages, `tick` of the campaign, `d1` of the journal on
Cloudflare
D1. Each has one function that takes a `Bench` and returns a `Section`: tables, and the bars it
judges. The words of all pages are in `texts`. `plots` draws the overview from the written pages.
"""
