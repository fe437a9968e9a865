// Bundles the pages into a folder: node bundle.mjs FOLDER
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { load } from "./sdk.mjs";

const [, , folder] = process.argv;
const pages = ["rest-1.12", "rest-latest", "protocol"];
const { build } = (await load("esbuild")).default;
const here = fileURLToPath(new URL("pages", import.meta.url));
mkdirSync(folder, { recursive: true });
await build({
  entryPoints: pages.map((page) => join(here, `${page}.jsx`)),
  outdir: folder,
  bundle: true,
  format: "esm",
  jsx: "automatic",
  logLevel: "error",
  define: { "process.env.NODE_ENV": '"production"' },
  nodePaths: [join(process.env.JS_CLIENTS, "node_modules")],
});
for (const page of pages)
  writeFileSync(
    join(folder, `${page}.html`),
    `<!doctype html><meta charset="utf-8"><title>${page}</title>` +
      // Debian's Chromium asks for a /favicon.ico otherwise
      `<link rel="icon" href="data:,"><div id="root"></div>` +
      `<script type="module" src="${page}.js"></script>`,
  );
console.log(JSON.stringify(pages));
