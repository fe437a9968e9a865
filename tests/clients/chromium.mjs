// Finds a Chromium: the system's, or else the one that npm's @sparticuz/chromium carries.
//   node chromium.mjs   prints its path
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { delimiter, join } from "node:path";
import { pathToFileURL } from "node:url";
import { load } from "./sdk.mjs";

const NAMES = ["chromium", "chromium-browser", "google-chrome"];

export async function findChromium() {
  const system = (process.env.PATH ?? "")
    .split(delimiter)
    .flatMap((folder) => NAMES.map((name) => join(folder, name)))
    .find(existsSync);
  return system ?? unpack();
}

/** The package unpacks into the folder for temporary files: here one of its version, which stays. */
async function unpack() {
  const about = join(process.env.JS_CLIENTS, "node_modules/@sparticuz/chromium/package.json");
  const folder = join(process.env.JS_CLIENTS, `chromium-${JSON.parse(readFileSync(about, "utf8")).version}`);
  mkdirSync(folder, { recursive: true });
  const before = process.env.TMPDIR;
  process.env.TMPDIR = folder;
  try {
    return await (await load("@sparticuz/chromium")).default.executablePath();
  } finally {
    if (before === undefined) delete process.env.TMPDIR;
    else process.env.TMPDIR = before;
  }
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  console.log(JSON.stringify(await findChromium()));
}
