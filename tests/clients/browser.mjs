// A real Chromium, which Playwright drives.
import { findChromium } from "./chromium.mjs";
import { load } from "./sdk.mjs";

export async function open() {
  const { chromium } = (await load("playwright-core")).default;
  const executablePath = await findChromium();
  const args = ["--no-sandbox", "--no-zygote", "--headless=shell", "--disable-dev-shm-usage", "--disable-gpu"];
  return chromium.launch({ executablePath, args });
}
