// A person in Agent Inbox and in agent-chat-ui, both already running:
//   node ui_clients.mjs API_URL FOLDER AGENT_INBOX_URL AGENT_CHAT_UI_URL   ("-" leaves one out)
// Prints what came of it, and leaves pictures in the folder.
import { join } from "node:path";
import { open } from "./browser.mjs";
import { load } from "./sdk.mjs";

const [, , api, folder, inboxUrl, chatUrl] = process.argv;
const { Client } = await load("langgraph-sdk-1.12");
const client = new Client({ apiUrl: api, apiKey: null });
const browser = await open();
const WIDE = { width: 1440, height: 900 };
const NARROW = { width: 390, height: 844 };
const complaints = [];
const outside = /fonts|Failed to load resource: net::ERR_(INTERNET|NAME)/;

async function visit(url, storage = {}) {
  const context = await browser.newContext({ viewport: WIDE, colorScheme: "light" });
  await context.addInitScript((entries) => {
    for (const [key, value] of Object.entries(entries)) localStorage.setItem(key, value);
  }, storage);
  const page = await context.newPage();
  page.setDefaultTimeout(30000);
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("console", (line) => {
    if (line.type() === "error" && !outside.test(line.text())) complaints.push(line.text());
  });
  page.on("response", (reply) => {
    if (reply.url().startsWith(api) && reply.status() >= 400)
      complaints.push(`${reply.request().method()} ${reply.url().slice(api.length)}: ${reply.status()}`);
  });
  await page.goto(url);
  return page;
}

async function picture(page, name) {
  await page.waitForTimeout(300);
  await page.screenshot({ path: join(folder, `${name}.png`) });
  await page.setViewportSize(NARROW);
  await page.waitForTimeout(500);
  await page.screenshot({ path: join(folder, `${name}-narrow.png`) });
  await page.setViewportSize(WIDE);
}

async function question() {
  const { thread_id } = await client.threads.create();
  await client.runs.wait(thread_id, "gate", { input: {} });
  return thread_id;
}

async function answered(thread_id) {
  for (let i = 0; i < 200; i++) {
    const thread = await client.threads.get(thread_id);
    if (thread.status === "idle") return thread.values?.got ?? "no answer";
    await new Promise((done) => setTimeout(done, 50));
  }
  return { still: (await client.threads.get(thread_id)).status };
}

const ANSWERS = {
  accept: (page) => page.getByRole("button", { name: "Accept", exact: true }).click(),
  edit: async (page) => {
    await page.locator("textarea").nth(1).fill("Dear Ada");
    await page.getByRole("button", { name: "Submit", exact: true }).click();
  },
  respond: async (page) => {
    await page.getByPlaceholder("Your response here...").fill("Write to Bob instead");
    await page.getByRole("button", { name: "Send Response" }).click();
  },
  ignore: (page) => page.getByRole("button", { name: "Ignore", exact: true }).click(),
  resolve: (page) => page.getByRole("button", { name: "Mark as Resolved" }).click(),
};

async function inbox() {
  const found = {};
  const id = "3f1e2d4c-0000-4000-8000-000000000001";
  const storage = {
    "inbox:id_backfill_completed": "true",
    "inbox:agent_inboxes": JSON.stringify([
      { id, graphId: "gate", deploymentUrl: api, name: "Letters", selected: true },
    ]),
  };
  const list = `${inboxUrl}/?agent_inbox=${id}&inbox=interrupted&limit=10&offset=0`;
  for (const [name, answer] of Object.entries(ANSWERS)) {
    const thread = await question();
    const page = await visit(list, storage);
    await page.getByText("A letter to Ada is ready.").first().waitFor();
    if (name === "accept") await picture(page, "inbox-list");
    await page.waitForLoadState("networkidle");
    await page.goto(`${list}&view_state_thread_id=${thread}`); // where a click on the row leads to
    await page.getByPlaceholder("Your response here...").waitFor();
    if (name === "accept") await picture(page, "inbox-question");
    await answer(page);
    found[name] = await answered(thread);
    await page.waitForTimeout(1500);
    await picture(page, `inbox-after-${name}`);
    await page.context().close();
  }
  return found;
}

async function chat() {
  const page = await visit(`${chatUrl}/?apiUrl=${encodeURIComponent(api)}&assistantId=chat`);
  const draft = page.getByPlaceholder("Type your message...");
  await draft.waitFor();
  await picture(page, "chat-empty");
  await draft.fill("count 40");
  await draft.press("Enter");
  await page.getByText("1 2 3 4 5").first().waitFor();
  const during = await page.textContent("body");
  await picture(page, "chat-tokens");
  await page.getByText("38 39 40").first().waitFor();
  await page.waitForTimeout(1000);
  await picture(page, "chat-answer");
  await draft.fill("hello there");
  await draft.press("Enter");
  await page.getByText("You said: hello there").first().waitFor();
  await page.waitForTimeout(1000);
  const thread = new URL(page.url()).searchParams.get("threadId");
  await page.reload();
  await page.getByText("You said: hello there").first().waitFor();
  await picture(page, "chat-reloaded");
  const { values } = await client.threads.getState(thread);
  return { partial: !during.includes("38 39 40"), messages: values.messages.map((one) => [one.type, one.content]) };
}

const story = {};
for (const [name, part, url] of [["inbox", inbox, inboxUrl], ["chat", chat, chatUrl]]) {
  if (url === "-") continue;
  try {
    story[name] = await part();
  } catch (error) {
    const page = browser.contexts().at(-1)?.pages().at(-1);
    if (page) await page.screenshot({ path: join(folder, `${name}-failed.png`) });
    story[name] = { failed: String(error) };
  }
}
await browser.close();
console.log(JSON.stringify({ ...story, complaints }, null, 1));
process.exit(Object.values(story).some((one) => one.failed) ? 1 : 0);
