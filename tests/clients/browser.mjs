// A real Chromium: the system's, or else the one that npm's @sparticuz/chromium carries.
import { existsSync } from "node:fs";
import { delimiter, join } from "node:path";
import { load } from "./sdk.mjs";

export async function open() {
  const { chromium } = (await load("playwright-core")).default;
  const system = (process.env.PATH ?? "")
    .split(delimiter)
    .flatMap((folder) => ["chromium", "chromium-browser", "google-chrome"].map((name) => join(folder, name)))
    .find(existsSync);
  const executablePath = system ?? (await (await load("@sparticuz/chromium")).default.executablePath());
  const args = ["--no-sandbox", "--no-zygote", "--headless=shell", "--disable-dev-shm-usage", "--disable-gpu"];
  return chromium.launch({ executablePath, args });
}
