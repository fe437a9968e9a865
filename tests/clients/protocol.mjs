// Uses `client.threads.stream`, the v2 protocol: node protocol.mjs PACKAGE URL
import { load, Record } from "./sdk.mjs";

const [, , name, apiUrl] = process.argv;
const { Client } = await load(name);
const client = new Client({ apiUrl, apiKey: null, callerOptions: { maxRetries: 0 } });
const record = new Record();
const say = (content) => ({ input: { messages: [{ type: "human", content }] } });

async function within(seconds, promise, what) {
  let timer;
  const late = new Promise((_, fail) => {
    timer = setTimeout(() => fail(new Error(`${what} took longer than ${seconds} s`)), seconds * 1000);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

await record.call("chat", async () => {
  const thread = client.threads.stream({ assistantId: "chat" });
  // The client gets the words in a stream of its own if `messages` is read after the start. Then it ends
  // them as soon as its first stream says that the run has completed, even if the server's replay of the
  // words is under way: it has none. Before the start is awaited, one stream carries both, in order.
  const starting = thread.run.start(say("hello there"));
  const { messages } = thread;
  const started = await starting;
  const words = [];
  for await (const message of messages) {
    for await (const word of message.text) words.push(word);
    break;
  }
  const output = await within(20, thread.output, "the output");
  await thread.close();
  return { started, words, messages: output.messages.map((one) => [one.type ?? one.getType?.(), one.text ?? one.content]) };
});

await record.call("question", async () => {
  const thread = client.threads.stream({ assistantId: "chat" });
  await thread.run.start(say("ask me"));
  await within(20, thread.output, "the question");
  const { interrupted } = thread;
  const interrupts = structuredClone(thread.interrupts);
  const values = await thread.subscribe("values");
  const { interruptId, namespace } = thread.interrupts[0];
  await thread.input.respond({ namespace, interrupt_id: interruptId, response: "yes" });
  let last;
  await within(
    20,
    (async () => {
      for await (const event of values) {
        last = event.params.data;
        if (last.messages.length === 3) break;
      }
    })(),
    "the answer",
  );
  await thread.close();
  return { interrupted, interrupts, count: last.messages.length };
});

await record.call("failure", async () => {
  const thread = client.threads.stream({ assistantId: "faulty" });
  await thread.run.start({ input: { n: 1 } });
  try {
    return { output: await within(20, thread.output, "the failure") };
  } finally {
    await thread.close();
  }
});

await record.call("subgraph", async () => {
  const thread = client.threads.stream({ assistantId: "family" });
  const events = await thread.subscribe(["lifecycle", "values"]);
  await thread.run.start({ input: { n: 1 } });
  const seen = [];
  await within(
    20,
    (async () => {
      for await (const { method, params } of events) {
        seen.push([method, params.namespace.map((one) => one.split(":")[0]), params.data.event ?? null]);
        if (method === "lifecycle" && !params.namespace.length && params.data.event === "completed") break;
      }
    })(),
    "the subgraph",
  );
  await thread.close();
  return seen;
});

record.print();
process.exit(0);
