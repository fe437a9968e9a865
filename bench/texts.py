# ruff: noqa: E501
"""The prose of the benchmark pages: what each table shows, and how it was measured.

Kept apart from the measurements, so that a test can compare it with the committed pages without
importing every contender. `{names}` are filled in by the measurement.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.report import Bar, Section, Table


@dataclass(frozen=True, slots=True)
class Text:
    """The words of one measurement."""

    title: str
    lead: str
    method: str = ""

    def section(
        self, tables: Sequence[Table], bars: Sequence[Bar] = (), **values: object
    ) -> Section:
        title, lead, method = (
            part.format(**values) for part in (self.title, self.lead, self.method)
        )
        return Section(title, lead, method, tables, bars)


@dataclass(frozen=True, slots=True)
class Page:
    """One file below docs/benchmarks: the measurements it shows, and the words around them."""

    title: str
    introduction: str
    measurements: Sequence[str]
    remarks: str = ""


PAGES = {
    "core": Page(
        "The saver and the runtime",
        """\
perdure's saver next to LangGraph's own ("stock"), and its runtime next to DBOS. The ratios are
what matters; milliseconds depend on the machine.""",
        (
            *("steps", "bytes", "turns", "load", "concurrent", "fsyncs", "import"),
            *("accept", "drive", "recovery", "due", "sleeping"),
        ),
    ),
    "effects": Page(
        "Effects",
        """\
What an [effect](../guides/effects.md) costs: commits, throughput next to DBOS steps, and the share
of an agent's time.""",
        ("commits", "effects", "agent"),
    ),
    "reflections": Page(
        "Reflections",
        """\
What thousands of pending [reflections](../guides/memory.md) cost when submitting one more, when
starting a process, and in memory.""",
        ("reflections",),
    ),
    "campaign": Page(
        "The campaign",
        """\
A tick of the [campaign](../tutorials/campaign.md) application while up to 100,000 of its threads
sleep.""",
        ("tick",),
    ),
    "d1": Page(
        "Cloudflare D1",
        """\
Requests, rows and bytes of the [journal on Cloudflare D1](../guides/cloudflare-d1.md), and what
they would cost. Counts hardly depend on the machine.""",
        ("d1",),
        """\
## Where the public saver differs

Found with `langgraph-checkpoint-cloudflare-d1` 0.1.6 on the same D1. Each line is a test of both
savers, with the blocking and the asynchronous methods: `tests/neighbours/test_cloudflare_d1.py`.

| | public saver | perdure |
|---|---|---|
| a state of 3 MB, larger than a row of D1 may be | the run succeeds, but the state is not stored | stored, compressed or split over rows |
| D1 refuses a write | the run succeeds, but nothing is stored | the run fails with the reason |
| a node wrote bytes, and its sibling failed | the thread is unreadable in about half of all cases: `TypeError` | the run resumes, and the node is not called again |
| a node wrote `None` and something else, and its sibling failed | the `None` is lost, and the old value stays | written |
| a node wrote only `None`, and its sibling failed | called again, or the thread is unreadable | not called again |
| the history of a thread, asynchronous saver | checkpoints that are `None` | every checkpoint |
| `list(filter={"source": "input"})` | an error: "malformed JSON" | the checkpoints |
| a key of `filter` that a user supplied | is executed as SQL and can read other users' threads | is treated as a name |""",
    ),
    "observing": Page(
        "Traces and metrics",
        """\
What [traces](../guides/tracing.md) and [metrics](../guides/metrics.md) add to a step that does
nothing. 0.1 ms is less than 1 % of a step that calls a model. If both are off, nothing is imported
and no statement returns or stores anything extra.""",
        ("observing",),
    ),
    "server": Page(
        "The server",
        """\
The [server](../guides/serving.md) next to `langgraph dev`, with one client and with 50.
`langgraph dev` keeps threads and runs in memory. Ours are on disk before the reply.""",
        ("server",),
        """\
## Where perdure is slower, and why

* **Creating runs.** Before the reply, a run is validated, authorised and stored on disk. This takes CPU
  time on the event loop and in the thread that commits. On PostgreSQL the client, the server and
  the database also share two cores.
* **One client.** It waits for each reply before it sends the next request, so each run that it
  creates waits for a separate commit, and each read of a state goes to a reader thread and back.
* **Streaming messages.** With `messages` among the stream modes, LangGraph no longer uses its fast path
  for single tasks, and calls a handler for every node. The graph here calls no model, so nothing
  hides that cost.""",
    ),
    "pages": Page(
        "The pages in the browser",
        """\
How long a page of the [inbox](../guides/inbox.md) or the [dashboard](../guides/operating.md) takes,
with 1,000 and with 100,000 runs in the journal.""",
        ("pages",),
        """\
## What grows

Lists are read by key, so they do not grow with the journal. Health counts up to a thousand runs in
each state. With 1,000 runs in total there is less to count, which is why it is faster there. Sizes
between the two were not measured.""",
    ),
}

TEXTS = {
    "steps": Text(
        "Time per super-step",
        """\
Time for one super-step that appends 1 KB to a list, until its checkpoint is in the database. "× stock"
compares with LangGraph's own saver with `sync` on the same database.""",
        """\
A graph of one node runs {steps} super-steps. Each appends 1 KB of incompressible text to an
`operator.add` list. The clock runs from `invoke` or `ainvoke` until all checkpoints are in the
database, in `async` modes too. "Stores nothing" is a saver with empty methods: it shows the
time LangGraph spends on any saver. "One fsync" only writes and syncs 4 KB at every checkpoint: the
floor for any saver that waits for the disk at every step. {floor} perdure's `sync` makes one fsync
per step too (see [Fsyncs per super-step](#fsyncs-per-super-step)). Encoding, SQL and the handover
between threads are extra.""",
    ),
    "bytes": Text(
        "Bytes on disk",
        """\
The database after {turns} turns of a chat. Each turn adds 1 KB from the user and 1 KB from the bot,
so the payload is {payload}.""",
        """\
A `MessagesState` chat with incompressible text. SQLite: the size of the closed file after
`wal_checkpoint(TRUNCATE)`. PostgreSQL: the sum of `pg_total_relation_size` over the saver's tables,
with indexes and TOAST, without VACUUM. The size of the empty tables is listed separately and not
counted. perdure's include those of the runtime. "DeltaChannel" is LangGraph's beta channel in place of
the reducer of `MessagesState`. Measured once, because sizes do not vary.""",
    ),
    "turns": Text(
        "Turn 10 against turn {late:,}",
        """\
How much slower a turn of the same chat gets as the state grows to {messages:,} messages.""",
        """\
Medians of {around} turns around turn 10 and around turn {late:,}, contenders alternating turn by
turn. "Saver" is the wall time inside the saver's methods, summed over threads. It includes waiting
for the interpreter lock, which LangGraph's own thread holds for longer when there are more
messages. "Saver's CPU" leaves out all waiting. Neither includes what `auto` and `async` do in the
background. perdure actually ran all {late:,} turns, in one process. The state of the other savers was
extended by one `update_state`, because {late:,} real turns would fill gigabytes, so their histories
are shorter.

perdure does two things for each message. At every load it checks that the message it holds in
memory is the stored one, so that an in-place change that no node returned does not survive. That
takes about half a microsecond, where decoding would take about four. At every put it checks whether
each list element is still the same object. Without these checks the growth would still be about
1.4× (measured once, CPU time, SQLite with `auto`).""",
    ),
    "load": Text(
        "Loading the latest state",
        """\
A new saver loads the latest state of a thread with 10 to {most:,} checkpoints. The stock savers
are faster. They store a growing list whole at every step, which is why they stop at {stop:,}
checkpoints here.""",
        """\
A loop makes the history, one checkpoint per super-step. In every round a new saver is opened,
connects by looking up another thread, and loads the latest state of this one. No part of it is in
memory. "Fixed-size" is a 1 KB string and a counter. "Growing" is a list with one 100-byte element
per checkpoint, so the loaded state grows too.""",
    ),
    "concurrent": Text(
        "{threads} threads at once",
        """\
Super-steps per second of {threads} LangGraph threads in one process, with one saver.""",
        """\
{threads} asyncio tasks, each with a thread and a loop of {steps} super-steps with a 100-byte state.
"No checkpointer" is the ceiling that LangGraph itself sets. The stock PostgreSQL saver has an
`AsyncConnectionPool` of 10. Everything runs in one interpreter, so the cost of a saver is its CPU
time per step. On PostgreSQL, most of perdure's is spent in psycopg (about 20 µs per statement,
three statements per step). The database server runs on the other core.""",
    ),
    "fsyncs": Text(
        "Fsyncs per super-step",
        """\
Number of disk syncs in the loop of {steps} super-steps above (sync API).""",
        """\
Opening and closing are not counted. SQLite: calls to the VFS's `xSync`, including checkpoints of
the WAL, in a separate process. PostgreSQL: growth of `pg_stat_wal.wal_sync`, which does not include
the syncs of the checkpointer.""",
    ),
    "import": Text(
        "Import",
        """\
What `import perdure` adds to Python's start-up time. LangGraph is only imported when it is needed.""",
        """\
Whole processes, started alternately.""",
    ),
    "accept": Text(
        "Time to accept a run",
        """\
Time for `await Runtime.start(...)`, next to DBOS's `enqueue`. When either returns, the run (the
workflow) is on disk, and workers will finish it.""",
        """\
{count} runs, one after another by one caller, and by {crowd} callers at once in one process
(`asyncio.gather` of `start`, and of `enqueue_async`), which share commits in perdure. No worker
runs at the same time. The DBOS client has a pool of 20 connections, and its SQLite file is in WAL mode.""",
    ),
    "drive": Text(
        "Runs and steps per second",
        """\
Worker processes empty a backlog: {noops} no-op runs of one node each, then {loops} runs of {steps}
super-steps each. DBOS runs workflows without a step, and workflows of {steps} steps. "LangGraph
alone" stores nothing. It is the ceiling for anything that runs LangGraph.""",
        """\
The no-op runs are not equal work. A DBOS workflow without a step stores its input and its output. A
LangGraph run makes three checkpoints and the writes of two tasks, each fenced and with its event. A
third of perdure's time is spent in LangGraph itself.

The backlog is accepted first. Then the workers, already started and warm, begin to work, and the
clock runs until the database shows the last run as done. All functions are plain and do nothing.
Each process drives {crowd} runs at a time. DBOS is configured as its documentation recommends
for several processes: one queue
(`worker_concurrency={crowd}`, polled every 20 ms instead of every second), an executor id per
process, no conductor, no telemetry. Its SQLite file is switched to WAL, which makes it faster.

"LangGraph alone" runs the same graphs in as many processes, with `ainvoke`, {crowd} at a time, as
perdure's worker does, and with `invoke`, one after another. "CPU" is the CPU time of the worker
processes, without the database server. With more processes than cores, they and the database server
share the cores.""",
    ),
    "recovery": Text(
        "Recovery after SIGKILL",
        """\
{workers} worker processes with {runs} runs in progress are killed at once. A new worker finishes all of
them.""",
        """\
Each run is in the middle of its only node, which never returns in those workers. The clock starts
at the kill, when a new worker on the same host, imported and connected but idle until then, begins
to work. Its node does nothing. The clock stops when the last run is done. The new worker drives
{hand} runs at a time, which is the default.""",
    ),
    "due": Text(
        "Looking for due runs",
        """\
Time a worker needs to look for due runs and claim them, while 1,000 to {most} runs sleep.""",
        """\
The two operations `look` and `claim` on an open journal. Only one run was actually put to sleep. The
others are copies of its row with different ids and times, made with one SQL statement, followed on
PostgreSQL by the ANALYZE that autovacuum would run. "Nothing due": all sleep for days. A worker
would not even send the claim. "{some} due": {some} random runs are made due before each look and
claimed, with their events, in one commit.""",
    ),
    "sleeping": Text(
        "Memory of a worker with sleeping runs",
        """\
Resident memory of a worker process with no runs, of a new worker that finds {most} sleeping runs in
its journal, of the process that put those {most} to sleep, and of a process that drove {most} runs
to their end instead.""",
        """\
Measured after a garbage collection and after glibc returned free memory. The growth of the last two
comes from bounded caches and memory that the allocator keeps. "Objects" is the growth in live Python
objects per run put to sleep, from {warm} runs, when the caches are full, to {most}.""",
    ),
    "commits": Text(
        "Commits per effect",
        """\
Commits and fsyncs of one effect, with a step for each effect (its checkpoint included), and with
all effects in one step. Median, with the mean in parentheses.""",
        """\
A run of {count} effects whose functions do nothing. If the function asks for its key, to pass it
on, the outcome is written with the next commit: that of the next intent, or of the end of the run.
Otherwise the effect waits for its outcome to be committed, because the far side could not recognise
a second attempt. `durability="sync"` waits for every outcome and every checkpoint. The
writes of a transactional effect are committed with its outcome, but not with the preceding checkpoint.

Commits are counted by the journal, from one call to the next. The mean is slightly higher because a
worker also renews its lease, looks for other work, and commits whatever has waited for 20 ms.
Fsyncs are means: calls to `xSync` in SQLite's VFS, including those that fold the WAL into the file,
and growth of `pg_stat_wal.wal_sync`, minus those of a run of one effect.""",
    ),
    "effects": Text(
        "Effects per second",
        """\
Effects per second in one worker process, next to DBOS steps: one run of {alone:,} effects alone, and
{crowd} runs of {together} each at once. The functions do nothing.""",
        """\
A node calls its effects one after another, as a DBOS workflow calls its steps. The worker is
started and warm. The clock runs from accepting the run until the database shows it as done. Both
engines call "plain" functions in threads and "coroutines" on the event loop. DBOS is configured as
in [Runs and steps per second](core.md#runs-and-steps-per-second).

DBOS stores a step once, after the call. perdure stores an effect before the call, with its arguments
and under the run's lease, and after it, with an event. "Keyed" effects ask for their key, as they
should, and write their outcome with the next commit. "No key" effects wait for a second commit (see
[Commits per effect](#commits-per-effect)). "CPU" is the CPU time of the worker process, without the
database server.""",
    ),
    "agent": Text(
        "An agent with a model",
        """\
What durability adds to an agent whose model takes {thinks:.0f} ms to answer. The overhead is the median of
all rounds, with the smallest and the largest in parentheses.""",
        """\
An agent made with `langchain.agents.create_agent` asks its model {turns} times and calls a tool
after each answer but the last. The model answers after an `asyncio.sleep`, and the tool returns at
once. "No durability" is `ainvoke` without middleware or checkpointer. "Idle middleware" adds
middleware that only passes calls on, which LangChain does not do for free. The others use
`perdure.langchain.Durable()`, so each call to the model or the tool is an effect, and run under
the runtime; the clock runs from before `start` until after `tick`.""",
    ),
    "observing": Text(
        "Cost per step",
        """\
What metrics and OpenTelemetry traces add to a step. The share is smaller for a step that does
something.""",
        """\
{runs} runs of {steps} super-steps that do nothing, driven at once by one worker on SQLite. The clock
runs from the tick until every run is done and everything is reported: all events counted (metrics),
all spans exported to a receiver in another process (traces). {rounds} rounds, each contender with its
own journal. "Added to a step" is the median of the ratios of all rounds, with its 95 % interval. "CPU"
is the CPU time of this process.""",
    ),
    "reflections": Text(
        "Pending reflections",
        """\
`perdure.langmem.ReflectionExecutor` with {many} pending reflections in its journal. LangMem's
`LocalReflectionExecutor` keeps its queue in memory and does not wait for a disk.""",
        """\
{real} of the reflections were actually submitted. The others are copies of their rows, made with
SQL, due in a month.

*Submit*: from the call to its return, when the reflection is on disk, {each} in each of {rounds}
rounds. "New" reflections belong to many users' conversations that have no pending reflection. "Replace"
replaces the pending reflection of one conversation, as debouncing does, {replaced} times in total.
"One row" is the floor: BEGIN, an INSERT of one row as large as the payload, COMMIT, with the same
settings (`synchronous=FULL`, `synchronous_commit=on`).

*Start-up*: a new process opens the executor, and one pending reflection is due. The clock runs from
the constructor to the call to the reflector. The import of `perdure.langmem`, with LangGraph,
LangChain and LangMem, comes before and is listed separately.

*Memory*: resident memory of that process after a garbage collection and after glibc returned free
memory, when the first reflection had run and {made} reflections later. The submitting process
dropped its Futures. "Objects" is its growth in live Python objects per reflection, from the first
{some} to the last.""",
    ),
    "server": Text(
        "The server next to `langgraph dev`",
        """\
`langgraph dev` is {versions}.""",
        """\
Each server is a separate process, restarted in each round. The client is another process on the
same machine, with a lean HTTP client. Servers are measured one after another, in rotating order.

*Streaming chat*: a model answers with {tokens} tokens without a pause. "First token" is the time from
the request (or call) to the first token. "Tokens/s" counts the time from the request
to the last token, because several tokens may arrive at once. Over HTTP, the run is created and
streamed by `POST /threads/{{id}}/runs/stream` with `messages-tuple`. "In process" is `rt.start` and
`rt.stream` with a worker in the same event loop. `graph.astream` has no checkpointer and stores
nothing.

*Requests*: `POST /threads/{{id}}/runs` for a graph with one node, and `GET /threads/{{id}}/state` for a
finished thread. Each client has its own connection and its own thread. "Create" is a run that starts
in an hour, so only its acceptance is measured. "Create and drive" starts at once: ours is driven
while more requests arrive, and `langgraph dev` leaves most for later.

*Latency*: `POST /threads/{{id}}/runs/wait` for the same graph, and the time from sending
`command.resume` until the node resumes.

*Streaming on and off*: a loop of {steps} super-steps, from `rt.start` until the run is done.""",
    ),
    "pages": Text(
        "Time per page",
        """\
Median time from the request to the last byte of the HTML. A tenth of the runs ask a person, so
the larger journal has {asked} open questions.""",
        """\
Two servers in separate processes, with journals of {small} and {large} runs. Most runs are copies of
a few that were actually driven (`bench/ui_journal.py`). One client on the same machine requests each
page {rounds} times from each server in turn. The pages are those that people open, with the filters
they use most.

*Open tabs*: {tabs} connections to the live list of runs of one process. A run is started, and "seen by
the last" is the time until the last tab has been notified. Tabs are notified once a second. CPU is
what the process uses while nothing happens.""",
    ),
    "tick": Text(
        "A tick over sleeping campaign threads",
        """\
`runtime.tick(limit={some})` of the campaign application, with {least} to {most} contacts asleep
between two mails. With {some} contacts due, a tick checks each for a reply, has a scripted model
write the mails, sends {some} mails by SMTP, records everything, and puts the threads to sleep again.""",
        """\
Each database has its own ticking process, already started and warmed up. It drives ten threads at a
time. The SMTP server is another process, and the benchmark checks that each mail arrived.

{real} threads of each database were actually driven. {some} of them, spread over the tables, become
due in each round, when a test clock is moved. Each is driven once. The others only sleep: they are
copies of one sleeping thread's rows in every table of the journal and the application ({rows} rows
per thread), with their own ids, made with SQL. A checksum binds the content of a row to its thread,
so a copy could not be driven. PostgreSQL then ran VACUUM and ANALYZE, as its autovacuum would.
SQLite ran neither. "Nothing due" is a tick while all contacts sleep, as the median of {idle} in
each round. In each of {rounds} rounds every database has its turn, in random order. "CPU" is the
CPU time of the process that ticks. "On disk" is the size before the first round.

*Memory*: resident memory of that process after a garbage collection and after glibc returned free
memory.

*Stock LangGraph*: its savers do not know what is due, so a cron job needs its own table or has to
ask every thread. "A table" is `SELECT … WHERE due_at <= ? ORDER BY due_at LIMIT {some}` with an
index, in the file of LangGraph's SQLite saver. The application has to maintain it. "`list()`" walks
through the saver's checkpoints, {checkpoints} per thread, and reads from the last one when its thread
is due to wake up. Both only find due threads and drive nothing.""",
    ),
    "d1": Text(
        "Requests, rows and bytes",
        """\
D1 ran in workerd {version}, Cloudflare's own server, on this machine. The limits, latency and bill of
a real account were not tested.""",
        """\
A proxy between each contender and D1 counts HTTP requests and the bytes of their bodies, adds up the
rows that D1 reports as read and written (an index entry is a row too), and delays each request by
{distance} ms, like a nearby data centre. How much perdure commits together depends on that delay.
Opening the database and creating the tables are not counted.

*Next to the public saver*: the graph of [time per super-step](core.md#time-per-super-step), whose
node appends 1 KB in each of {steps} super-steps, counted from `invoke` until the checkpoints are in
the database. The public saver is `langgraph-checkpoint-cloudflare-d1`. It uses the REST API, with one
request for each checkpoint, which holds the whole state, and one for each write of a task. perdure
uses its Worker. Each is checked to have stored every step.

*The runtime*: medians of {rounds}, in a runtime that has already driven runs. "Tick with one run" drives a
run that was already started and shares no requests with other runs. "Each further step" is a ninth of
the difference between ten steps and one, and effects likewise. {due} runs in one tick, ten at a time,
share their requests, and "per run" is a {due}th of the tick. For "{asleep} asleep" the row of one
sleeping run was copied with SQL. The idle worker was watched for {watched} s.

*Prices*: {prices} These were Cloudflare's published prices in November 2026; check the current
ones. "At list price" assumes that nothing is included. "Of the included amount" is the share of the
monthly allowance that runs out first. CPU time of the Worker, storage and the plan's fee are
extra.""",
    ),
}
