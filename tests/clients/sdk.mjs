// Opens one of the two installed versions of LangGraph's JavaScript SDK, and records calls.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

/** The module that `import "PACKAGE/SUBPATH"` means, of a package in .js-clients/. */
export async function load(name, subpath = ".") {
  const folder = join(process.env.JS_CLIENTS, "node_modules", name);
  const { exports, main } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const entry = exports?.[subpath]?.import ?? exports?.[subpath] ?? main;
  return import(pathToFileURL(join(folder, entry.default ?? entry)));
}

/** What was called, in order: each answer under its name, or the error in its place. */
export class Record {
  answers = {};

  async call(name, ask) {
    try {
      const answer = await ask();
      this.answers[name] = answer === undefined ? { undefined: true } : answer;
      return answer;
    } catch (error) {
      this.answers[name] = {
        failed: { name: error.name, status: error.status ?? null, message: String(error.message) },
      };
      return undefined;
    }
  }

  print() {
    console.log(JSON.stringify(this.answers));
  }
}

/** Every event of a stream, at most `most`. */
export async function all(stream, most = 10000) {
  const events = [];
  for await (const event of stream) {
    events.push(event);
    if (events.length >= most) break;
  }
  return events;
}
