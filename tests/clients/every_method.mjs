// Calls every method of the SDK once or more and prints the answers: node every_method.mjs PACKAGE URL
import { all, load, Record } from "./sdk.mjs";

const [, , name, apiUrl] = process.argv;
const { Client } = await load(name);
const client = new Client({ apiUrl, apiKey: null, callerOptions: { maxRetries: 0 } });
const { assistants, threads, runs, crons, store } = client;
const record = new Record();
const call = (title, ask) => record.call(title, ask);
const nowhere = "00000000-0000-4000-8000-000000000000";

// assistants
const found = await call("assistants.search", () => assistants.search({ graphId: "numbers" }));
await call("assistants.search paged", () => assistants.search({ limit: 2, includePagination: true }));
await call("assistants.search select", () =>
  assistants.search({ graphId: "numbers", select: ["assistant_id", "name"] }),
);
await call("assistants.count", () => assistants.count());
const system = found?.[0]?.assistant_id ?? nowhere;
await call("assistants.get", () => assistants.get(system));
await call("assistants.get unknown", () => assistants.get(nowhere));
await call("assistants.getGraph", () => assistants.getGraph(system));
await call("assistants.getGraph by name", () => assistants.getGraph("family", { xray: true }));
await call("assistants.getSchemas", () => assistants.getSchemas(system));
await call("assistants.getSubgraphs", () => assistants.getSubgraphs("family", { recurse: true }));
const made = await call("assistants.create", () =>
  assistants.create({ graphId: "numbers", name: "mine", metadata: { team: "a" }, config: { tags: ["x"] } }),
);
const mine = made?.assistant_id ?? nowhere;
await call("assistants.create again", () =>
  assistants.create({ graphId: "numbers", assistantId: mine, ifExists: "raise" }),
);
await call("assistants.create do_nothing", () =>
  assistants.create({ graphId: "numbers", assistantId: mine, ifExists: "do_nothing" }),
);
await call("assistants.update", () => assistants.update(mine, { name: "ours", metadata: { more: 1 } }));
await call("assistants.getVersions", () => assistants.getVersions(mine));
await call("assistants.setLatest", () => assistants.setLatest(mine, 2));
await call("assistants.setLatest older", () => assistants.setLatest(mine, 1));
await call("assistants.delete", () => assistants.delete(mine));
await call("assistants.get deleted", () => assistants.get(mine));

// threads
const thread = await call("threads.create", () => threads.create({ metadata: { who: "js" }, graphId: "numbers" }));
const t = thread?.thread_id ?? nowhere;
await call("threads.create again", () => threads.create({ threadId: t, ifExists: "raise" }));
await call("threads.create do_nothing", () => threads.create({ threadId: t, ifExists: "do_nothing" }));
await call("threads.create bad id", () => threads.create({ threadId: "no-uuid" }));
await call("threads.create supersteps", () =>
  threads.create({
    graphId: "numbers",
    supersteps: [
      { updates: [{ values: { n: 4, log: ["given"] }, asNode: "__input__" }] },
      { updates: [{ values: { n: 5, log: ["first"] }, asNode: "add" }] },
    ],
  }),
);
await call("threads.get", () => threads.get(t));
await call("threads.get unknown", () => threads.get(nowhere));
await call("threads.update", () => threads.update(t, { metadata: { more: 1 } }));
await call("threads.getState empty", () => threads.getState(t));

// runs on a thread
await call("runs.wait", () => runs.wait(t, "numbers", { input: { n: 1 } }));
await call("threads.getState", () => threads.getState(t));
const history = await call("threads.getHistory", () => threads.getHistory(t));
await call("threads.getHistory limit", () => threads.getHistory(t, { limit: 1 }));
await call("threads.getState at", () => threads.getState(t, history?.[1]?.checkpoint?.checkpoint_id ?? nowhere));
await call("threads.getState checkpoint", () => threads.getState(t, history?.[1]?.checkpoint ?? {}));
await call("threads.updateState", () => threads.updateState(t, { values: { n: 10 }, asNode: "add" }));
await call("threads.getState updated", () => threads.getState(t));
await call("threads.updateState unknown node", () => threads.updateState(t, { values: { n: 1 }, asNode: "nope" }));
await call("threads.patchState", () => threads.patchState(t, { a: 1 }));
await call("threads.search", () => threads.search({ metadata: { who: "js" } }));
await call("threads.search status", () => threads.search({ metadata: { who: "js" }, status: "busy" }));
await call("threads.search ids", () => threads.search({ ids: [t], sortBy: "created_at", sortOrder: "asc" }));
await call("threads.search select", () => threads.search({ ids: [t], select: ["thread_id", "status"] }));
await call("threads.count", () => threads.count({ metadata: { who: "js" } }));
const copied = await call("threads.copy", () => threads.copy(t));
if (copied) await call("threads.getState copied", () => threads.getState(copied.thread_id));

let created;
const run = await call("runs.create", () =>
  runs.create(t, "numbers", {
    input: { n: 3 },
    metadata: { a: "b" },
    streamResumable: true,
    streamMode: ["values", "updates"],
    onRunCreated: (params) => (created = params),
  }),
);
const r = run?.run_id ?? nowhere;
await call("runs.create told", () => created);
await call("runs.join", () => runs.join(t, r));
await call("runs.get", () => runs.get(t, r));
await call("runs.get unknown", () => runs.get(t, nowhere));
await call("runs.list", () => runs.list(t, { limit: 1 }));
await call("runs.list success", () => runs.list(t, { status: "success" }));
await call("runs.joinStream", () => all(runs.joinStream(t, r, { lastEventId: "-1" })));
await call("runs.joinStream updates", () =>
  all(runs.joinStream(t, r, { lastEventId: "-1", streamMode: ["updates"] })),
);
for (const mode of ["values", "updates", "messages", "messages-tuple", "custom", "events", "debug", "tasks", "checkpoints"]) {
  await call(`runs.stream ${mode}`, async () => {
    const { thread_id } = await threads.create();
    const input = { messages: [{ type: "human", content: "hello there" }] };
    return all(runs.stream(thread_id, "chat", { input, streamMode: mode }));
  });
}
await call("runs.stream several", () =>
  all(runs.stream(t, "numbers", { input: { n: 1 }, streamMode: ["values", "updates"] })),
);
await call("runs.stream subgraphs", async () => {
  const { thread_id } = await threads.create();
  const payload = { input: { n: 1 }, streamMode: "updates", streamSubgraphs: true };
  return all(runs.stream(thread_id, "family", payload));
});
await call("runs.stream failing", async () => {
  const { thread_id } = await threads.create();
  return all(runs.stream(thread_id, "faulty", { input: { n: 1 } }));
});
const failing = await threads.create();
await call("runs.wait failing", () => runs.wait(failing.thread_id, "faulty", { input: { n: 1 } }));
await call("runs.wait failing quietly", () =>
  runs.wait(failing.thread_id, "faulty", { input: { n: 1 }, raiseError: false }),
);
await call("threads.get failed", () => threads.get(failing.thread_id));
await call("runs.wait unknown graph", () => runs.wait(t, "nope", { input: {} }));
await call("runs.wait unknown thread", () => runs.wait(nowhere, "numbers", { input: {} }));
await call("runs.wait if_not_exists", () =>
  runs.wait(crypto.randomUUID(), "numbers", { input: { n: 1 }, ifNotExists: "create" }),
);
await call("runs.wait stateless", () => runs.wait(null, "numbers", { input: { n: 5 } }));
await call("runs.create stateless", () => runs.create(null, "numbers", { input: { n: 5 } }));
await call("runs.stream stateless", () => all(runs.stream(null, "numbers", { input: { n: 5 } })));
await call("runs.createBatch", () =>
  runs.createBatch([
    { assistantId: "numbers", input: { n: 1 } },
    { assistantId: "one", input: { n: 2 } },
  ]),
);

// a person is asked
const asked = (await threads.create({ metadata: { asked: true } })).thread_id;
await call("runs.wait interrupt", () => runs.wait(asked, "gate", { input: {} }));
await call("threads.get interrupted", () => threads.get(asked));
await call("threads.search interrupted", () =>
  threads.search({ status: "interrupted", metadata: { asked: true, graph_id: "gate" } }),
);
await call("threads.getState interrupted", () => threads.getState(asked));
await call("runs.wait resume", () => runs.wait(asked, "gate", { command: { resume: [{ type: "accept", args: null }] } }));
await call("threads.get resumed", () => threads.get(asked));
await call("runs.wait breakpoint", () => runs.wait(t, "numbers", { input: { n: 1 }, interruptBefore: ["double"] }));
await call("threads.get breakpoint", () => threads.get(t));
await call("runs.wait past breakpoint", () => runs.wait(t, "numbers", { input: null }));

// cancelling
async function sleeping() {
  const { thread_id } = await threads.create();
  const { run_id } = await runs.create(thread_id, "slow", { input: { n: 1 } });
  for (let i = 0; i < 100 && (await runs.get(thread_id, run_id)).status === "pending"; i++)
    await new Promise((done) => setTimeout(done, 50));
  return [thread_id, run_id];
}
const [c1, c1run] = await sleeping();
await call("runs.create busy reject", () => runs.create(c1, "slow", { input: {}, multitaskStrategy: "reject" }));
await call("threads.get busy", () => threads.get(c1));
await call("threads.updateState busy", () => threads.updateState(c1, { values: { n: 1 } }));
await call("runs.cancel", () => runs.cancel(c1, c1run, true));
await call("runs.get cancelled", () => runs.get(c1, c1run));
await call("threads.get cancelled", () => threads.get(c1));
const [c2, c2run] = await sleeping();
await call("runs.cancel at once", () => runs.cancel(c2, c2run, false));
await call("runs.join cancelled", () => runs.join(c2, c2run));
const [c3, c3run] = await sleeping();
await call("runs.cancel rollback", () => runs.cancel(c3, c3run, true, "rollback"));
await call("runs.get rolled back", () => runs.get(c3, c3run));
await call("threads.get rolled back", () => threads.get(c3));
if (runs.cancelMany) {
  const [c4, c4run] = await sleeping();
  await call("runs.cancelMany", () => runs.cancelMany({ threadId: c4, runIds: [c4run] }));
  await call("runs.cancelMany none", () => runs.cancelMany({ threadId: c4, runIds: [nowhere] }));
}
await call("runs.create later", () => runs.create(t, "numbers", { input: { n: 1 }, afterSeconds: 3600 }));
const later = record.answers["runs.create later"]?.run_id;
if (later) {
  await call("runs.get later", () => runs.get(t, later));
  await call("runs.delete", async () => {
    await runs.cancel(t, later, true);
    return runs.delete(t, later);
  });
  await call("runs.get deleted", () => runs.get(t, later));
}

// the thread's stream: what runs after joining
await call("threads.joinStream", async () => {
  const { thread_id } = await threads.create();
  const stop = new AbortController();
  const events = [];
  const reading = (async () => {
    try {
      for await (const event of threads.joinStream(thread_id, { signal: stop.signal })) {
        events.push(event);
        if (event.event === "metadata" && event.data?.status === "run_done") return;
      }
    } catch (error) {
      if (!stop.signal.aborted) throw error;
    }
  })();
  await new Promise((done) => setTimeout(done, 1000));
  await runs.wait(thread_id, "numbers", { input: { n: 1 } });
  await Promise.race([reading, new Promise((done) => setTimeout(done, 5000))]);
  stop.abort();
  return events;
});

// crons
const cron = await call("crons.create", () =>
  crons.create("numbers", { schedule: "0 0 1 1 *", input: { n: 1 }, metadata: { c: 1 }, timezone: "Europe/Berlin" }),
);
const onThread = await call("crons.createForThread", () =>
  crons.createForThread(t, "numbers", { schedule: "0 0 1 1 *", input: { n: 1 } }),
);
await call("crons.create bad", () => crons.create("numbers", { schedule: "not a schedule" }));
await call("crons.search", () => crons.search({ assistantId: system }));
await call("crons.count", () => crons.count({ threadId: t }));
await call("crons.update", () => crons.update(cron?.cron_id ?? nowhere, { enabled: false }));
await call("crons.delete", () => crons.delete(cron?.cron_id ?? nowhere));
await call("crons.delete on thread", () => crons.delete(onThread?.cron_id ?? nowhere));
await call("crons.search deleted", () => crons.search({ metadata: { c: 1 } }));

// the store
const place = ["js", crypto.randomUUID()];
await call("store.putItem", () => store.putItem(place, "k", { a: 1, text: "one" }));
await store.putItem([...place, "deeper"], "k2", { a: 2 });
await call("store.getItem", () => store.getItem(place, "k"));
await call("store.getItem unknown", () => store.getItem(place, "nope"));
await call("store.searchItems", () => store.searchItems(place));
await call("store.searchItems filter", () => store.searchItems(place, { filter: { a: 2 } }));
await call("store.listNamespaces", () => store.listNamespaces({ prefix: place }));
await call("store.listNamespaces depth", () => store.listNamespaces({ prefix: place, maxDepth: 2 }));
await call("store.deleteItem", () => store.deleteItem(place, "k"));
await call("store.deleteItem again", () => store.deleteItem(place, "k"));
await call("store.putItem empty namespace", () => store.putItem([], "k", {}));

// the end of threads
if (threads.prune) await call("threads.prune", () => threads.prune([copied?.thread_id ?? nowhere]));
await call("threads.delete", () => threads.delete(t));
await call("threads.get deleted", () => threads.get(t));
record.print();
