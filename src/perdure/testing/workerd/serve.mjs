// Serves several D1 databases in workerd: the shipped Worker behind `routes.js`.
//
//   node serve.mjs '{"miniflare": folder, "worker": file, "data": folder, "port": n, "databases": n,
//                    "secret": text, "remove": folder or null}'
//
// Prints one line of JSON once it serves: {"workerd": process id}. Ends on SIGTERM, and when its
// standard input does, because the process that started it is gone; then the folder `remove` goes too.
import { readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";

const options = JSON.parse(process.argv[2]);
const require = createRequire(`${options.miniflare}/`);

const childProcess = require("node:child_process");
const spawn = childProcess.spawn;
let workerd;
childProcess.spawn = (...args) => (workerd = spawn(...args)); // Miniflare keeps its id to itself

const { Miniflare, NoOpLog } = require("miniflare");
const names = Array.from({ length: options.databases }, (_, n) => `DB${n}`);
const routes = new URL("routes.js", import.meta.url);
const miniflare = new Miniflare({
  host: "127.0.0.1",
  port: options.port,
  cf: false, // makes no request to the Internet
  log: new NoOpLog(),
  compatibilityDate: "2026-01-01",
  modules: [
    { type: "ESModule", path: "/routes.js", contents: readFileSync(routes, "utf8") },
    { type: "ESModule", path: "/worker.js", contents: readFileSync(options.worker, "utf8") },
  ],
  modulesRoot: "/",
  bindings: { PERDURE_SECRET: options.secret },
  d1Databases: Object.fromEntries(names.map((name) => [name, name])),
  d1Persist: options.data,
});

process.on("SIGTERM", () => end(null));
process.stdin.resume().on("close", () => end(options.remove));
await miniflare.ready;
console.log(JSON.stringify({ workerd: workerd.pid }));

async function end(remove) {
  await miniflare.dispose();
  if (remove) rmSync(remove, { recursive: true, force: true });
  process.exit();
}
