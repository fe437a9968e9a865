// Drives a chat page in a browser: node use_stream.mjs PAGE_URL API_URL [PART ...]
// Prints what a person saw: each part of the story, and what the browser complained about.
import { open } from "./browser.mjs";

const [, , pageUrl, api, ...chosen] = process.argv;
const address = new URL(pageUrl);
if (address.origin !== new URL(api).origin) address.searchParams.set("api", api);

const browser = await open();
const complaints = [];

async function visit() {
  const page = await (await browser.newContext()).newPage();
  page.setDefaultTimeout(20000);
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("console", (line) => line.type() === "error" && complaints.push(line.text()));
  await page.goto(address.href);
  return page;
}

async function say(page, text) {
  await page.fill("#draft", text);
  await page.click("#send");
}

const settled = (page) => page.waitForFunction(() => document.querySelector("#state")?.textContent === "idle");
const shows = (page, text) =>
  page.waitForFunction((text) => document.querySelector("ol")?.textContent.includes(text), text);
const messages = (page) => page.$$eval("li", (all) => all.map((one) => [one.className, one.textContent]));
const seen = (page) => page.evaluate(() => window.seen);
const threadOf = (page) => new URL(page.url()).searchParams.get("thread");

async function ask(path, body) {
  const options = body && { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  return (await fetch(api + path, options)).json();
}

async function chat() {
  const page = await visit();
  await say(page, "hello there");
  await shows(page, "You said: hello there");
  await settled(page);
  const first = { messages: await messages(page), seen: await seen(page) };
  await say(page, "and again");
  await shows(page, "You said: and again");
  await settled(page);
  return { first, second: { messages: await messages(page), seen: await seen(page) } };
}

async function question() {
  const page = await visit();
  await say(page, "ask me");
  await page.waitForSelector("#question");
  const asked = await page.textContent("#question");
  await settled(page);
  await page.click("#yes");
  await shows(page, "You said: the answer is yes");
  await settled(page);
  await page.waitForSelector("#question", { state: "detached" });
  return { asked, messages: await messages(page), state: await ask(`/threads/${threadOf(page)}/state`) };
}

async function stop() {
  const page = await visit();
  await say(page, "count 400");
  await shows(page, "1 2 3 4 5 ");
  await page.click("#stop");
  await settled(page);
  const shown = (await messages(page)).at(-1)[1];
  const path = `/threads/${threadOf(page)}/runs`;
  let runs;
  for (let i = 0; i < 100; i++) {
    runs = await ask(path);
    if (!["pending", "running"].includes(runs[0].status)) break;
    await new Promise((done) => setTimeout(done, 50));
  }
  return { shown, status: runs[0].status };
}

async function reload() {
  const page = await visit();
  await say(page, "count 60");
  await shows(page, "1 2 3 4 5 6 7 8 9 10 ");
  await page.reload();
  await shows(page, "11 12 ");
  await shows(page, " 58 59 60 ");
  await settled(page);
  return { messages: await messages(page), seen: await seen(page), runs: (await ask(`/threads/${threadOf(page)}/runs`)).length };
}

async function refused() {
  const page = await visit();
  await say(page, "hello there");
  for (let i = 0; i < 400 && !complaints.length; i++) await new Promise((done) => setTimeout(done, 50));
  return { messages: await messages(page) };
}

const parts = { chat, question, stop, reload, refused };
const story = {};
let failed = 0;
for (const name of chosen.length ? chosen : ["chat", "question", "stop", "reload"]) {
  try {
    story[name] = await parts[name]();
  } catch (error) {
    const pages = browser.contexts().at(-1)?.pages() ?? [];
    story[name] = { failed: String(error), page: await pages.at(-1)?.textContent("body").catch(() => null) };
    failed += 1;
  }
}
await browser.close();
console.log(JSON.stringify({ ...story, complaints, failed }));
