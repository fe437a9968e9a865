// What the pages do beyond htmx. All of it is optional: every page works without scripts.
"use strict";

// -- tell the server the browser's time zone, in which it shows times
(() => {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (!zone || !document.body) return;
  const known = document.cookie.split("; ").includes(`perdure_zone=${zone}`);
  const secure = location.protocol === "https:" ? "; Secure" : "";
  document.cookie = `perdure_zone=${zone}; Path=${document.body.dataset.base}; Max-Age=31536000; SameSite=Lax${secure}`;
  if (!known && document.cookie.includes(`perdure_zone=${zone}`) && document.querySelector("[data-zoned]")) location.reload();
})();

// -- the menu is open on wide screens, where it is a column
(() => {
  const menu = document.querySelector("[data-menu]");
  if (!menu) return;
  const wide = matchMedia("(min-width: 761px)");
  const apply = () => { menu.open = wide.matches; };
  wide.addEventListener("change", apply);
  apply();
})();

// -- send a form once: a second click does nothing until the response arrives
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  if (form.dataset.sent) { event.preventDefault(); return; }
  form.dataset.sent = "yes";
  for (const button of form.querySelectorAll("button")) button.setAttribute("aria-busy", "true");
});
addEventListener("pageshow", () => {  // back from the next page
  for (const form of document.querySelectorAll("form[data-sent]")) {
    delete form.dataset.sent;
    for (const button of form.querySelectorAll("button")) button.removeAttribute("aria-busy");
  }
});

// -- a decision that was opened has the focus in its first field
const focusFirst = (part) => part.querySelector("input:not([type=hidden]), textarea, select")?.focus();
document.addEventListener("click", (event) => {
  const opened = event.target.closest(".decision > summary")?.parentElement;
  if (opened && !opened.open) setTimeout(() => focusFirst(opened));
});

// -- a difference that is no longer what was typed is not shown, nor can it be sent
document.addEventListener("input", (event) => {
  event.target.closest("[hx-post]")?.querySelector(".difference")?.replaceChildren();
});

// -- filters apply at once
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-auto-submit] select, [data-auto-submit] input[type=checkbox]")) event.target.form.requestSubmit();
});

// -- clicking a row opens its page; its text can still be selected, and its own links work
document.addEventListener("click", (event) => {
  const row = event.target.closest("[data-href]");
  if (!row || event.target.closest("a, button, input, label, select, textarea, summary") || getSelection().toString()) return;
  location.assign(row.dataset.href);
});

// -- "all" ticks every box of its list
document.addEventListener("change", (event) => {
  if (!event.target.matches("[data-select-all]")) return;
  for (const box of event.target.form.querySelectorAll("input[type=checkbox][name=id]")) box.checked = event.target.checked;
});

// -- keyboard: j and k move through a list, x selects, / searches, a letter of data-key focuses a control, ? shows them all.
// No letter sends anything: Enter does, on the focused control.
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input:not([type=checkbox]):not([type=radio]), textarea, select")) return;
  const items = [...document.querySelectorAll("[data-item]")];
  const at = items.findIndex((item) => item.contains(document.activeElement));
  const move = (to) => { const next = items[Math.max(0, Math.min(items.length - 1, to))]; if (next) { (next.querySelector("a, button") ?? next).focus(); next.scrollIntoView({ block: "nearest" }); } };
  if (event.key === "j") move(at + 1);
  else if (event.key === "k") move(at - 1);
  else if (event.key === "x" && at >= 0) items[at].querySelector("input[type=checkbox]")?.click();
  else if (event.key === "/") document.querySelector("[data-search]")?.focus();
  else if (event.key === "?") document.querySelector("[data-keys]")?.showModal();
  else {
    const wanted = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
    if (!wanted) return;
    if (wanted.matches("summary")) { wanted.click(); focusFirst(wanted.parentElement); } else wanted.focus();
  }
  event.preventDefault();
});

// -- a hidden tab closes its connection: a browser opens only six to one server
(() => {
  if (!window.htmx) return;
  const open = new Set();
  htmx.createEventSource = (url) => {
    for (const source of open) if (source.readyState === EventSource.CLOSED) open.delete(source);
    const source = new EventSource(url);
    open.add(source);
    return source;
  };
  let leaving;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(leaving);
    if (document.hidden) leaving = setTimeout(() => { for (const source of open) source.close(); }, 10000);
    else for (const source of [...open]) if (source.readyState === EventSource.CLOSED) {
      open.delete(source);
      source.onerror?.(new Event("error"));  // the extension reconnects, and the server sends what changed
    }
  });
})();

// -- highlight a live update for a moment
document.addEventListener("htmx:sseMessage", (event) => {
  const element = event.target;
  if (element.classList) { element.classList.remove("fresh"); void element.offsetWidth; element.classList.add("fresh"); }
});

// -- parts that refresh themselves while the page is visible
for (const part of document.querySelectorAll("[data-refresh]")) {
  setInterval(() => { if (document.visibilityState === "visible" && window.htmx) htmx.trigger(part, "refresh"); }, 1000 * Number(part.dataset.refresh));
}

// -- notifications: one tab of a browser listens for new questions, and shows each once
(() => {
  const button = document.querySelector("[data-notify]");
  if (!document.querySelector("header.bar") || !("Notification" in window) || !navigator.locks) return;
  const base = document.body.dataset.base, key = `perdure.notify:${base}`, MOST_SAID = 500, SEVERAL = 3;
  const read = () => { try { return JSON.parse(localStorage.getItem(key)) ?? {}; } catch { return {}; } };
  const write = (change) => { try { localStorage.setItem(key, JSON.stringify({ ...read(), ...change })); } catch { /* storage is blocked: show nothing */ } };
  const isOn = () => read().on === true && Notification.permission === "granted";

  const notify = (title, body, url, tag) => {
    const shown = new Notification(title, { body, tag });
    shown.onclick = () => { focus(); shown.close(); location.assign(url); };
  };
  const say = (questions) => {
    const said = read().said ?? [];
    const fresh = questions.filter((one) => !said.includes(one.id));
    if (!fresh.length || !isOn()) return;
    write({ said: [...said, ...fresh.map((one) => one.id)].slice(-MOST_SAID) });
    try {
      if (fresh.length > SEVERAL) notify("perdure", `${fresh.length} new questions`, `${base}/inbox`, "perdure");
      else for (const one of fresh) notify(`${one.graph} asks`, one.title || "A question", one.url, one.id);
    } catch { write({ on: false }); show(); }  // some phones allow notifications only for installed pages
  };

  let stop = null;
  const listen = () => {
    if (stop || !isOn()) return;
    const ending = new AbortController();
    stop = () => { stop = null; ending.abort(); };
    navigator.locks.request(key, { signal: ending.signal }, () => new Promise((release) => {
      let source, waiting = [], timer;
      const connect = () => {
        const since = read().since;
        source = new EventSource(`${base}/notifications/live${since ? `?since=${since}` : ""}`);
        source.addEventListener("ready", (event) => {
          if (!read().since) write({ since: Number(event.lastEventId) });
          document.body.dataset.notifies = "yes";
        });
        source.addEventListener("asked", (event) => {
          write({ since: Math.max(read().since ?? 0, Number(event.lastEventId)) });
          waiting.push(JSON.parse(event.data));
          clearTimeout(timer);
          timer = setTimeout(() => { say(waiting); waiting = []; }, 300);
        });
        source.onerror = () => { if (source.readyState === EventSource.CLOSED && !ending.signal.aborted) setTimeout(connect, 30000); };
      };
      connect();
      ending.signal.addEventListener("abort", () => { source.close(); delete document.body.dataset.notifies; release(); });
    })).catch(() => {});  // turned off while another tab was listening
  };

  const show = () => {
    if (!button) return;
    const blocked = Notification.permission === "denied";
    button.hidden = false;
    button.disabled = blocked;
    button.textContent = blocked ? "Notifications are blocked" : isOn() ? "Stop notifying me" : "Notify me";
    button.title = blocked ? "Allow notifications from this site in your browser." : "Show a browser notification for each new question while one of these pages is open.";
  };
  const apply = () => { if (isOn()) listen(); else stop?.(); show(); };
  button?.addEventListener("click", async () => {
    write({ on: !isOn() && await Notification.requestPermission() === "granted" });
    apply();
  });
  addEventListener("storage", (event) => { if (event.key === key) apply(); });
  apply();
})();

// -- htmx loads the target of a link inside a picture; stop the browser from following it as well
document.addEventListener("click", (event) => {
  if (window.htmx && event.target.closest?.("svg a[hx-get]") && !event.ctrlKey && !event.metaKey && !event.shiftKey) event.preventDefault();
});

// -- keep what a person typed, selected or opened when a live update replaces the part around it
(() => {
  const fields = "input:not([type=hidden]), textarea, select";
  const isTick = (field) => field.type === "checkbox" || field.type === "radio";
  const place = (field) => JSON.stringify([field.form?.getAttribute("action"), field.name, isTick(field) && field.value]);
  const isChanged = (field) => {
    if (isTick(field)) return field.checked !== field.defaultChecked;
    if (field.matches("select")) return [...field.options].some((one) => one.selected !== one.defaultSelected);
    return field.value !== field.defaultValue;
  };
  document.addEventListener("htmx:sseBeforeMessage", (event) => {
    const part = event.target, focused = part.contains(document.activeElement) ? document.activeElement : null;
    const typed = new Map([...part.querySelectorAll(fields)].filter(isChanged).map((field) => [place(field), field]));
    const open = new Set([...part.querySelectorAll("details[open] > summary")].map((one) => one.textContent));
    if (!focused && !typed.size && !open.size) return;
    queueMicrotask(() => {  // after the replacement
      const now = part.isConnected ? part : document.getElementById(part.id);
      if (!now) return;
      for (const one of now.querySelectorAll("details > summary")) if (open.has(one.textContent)) one.parentElement.open = true;
      for (const field of now.querySelectorAll(fields)) {
        const before = typed.get(place(field));
        if (before && before !== field) { if (isTick(field)) field.checked = before.checked; else field.value = before.value; }
        if (focused?.matches(fields) && !focused.isConnected && place(focused) === place(field)) {
          field.focus({ preventScroll: true });
          if (focused.selectionStart != null) field.setSelectionRange(focused.selectionStart, focused.selectionEnd);
        }
      }
    });
  });
})();

// -- an item that comes again, because its tab connected again, takes the place of what is shown of it
document.addEventListener("htmx:sseBeforeMessage", (event) => {
  if (event.detail.type !== "new") return;
  const came = new DOMParser().parseFromString(event.detail.data, "text/html").body.firstElementChild;
  if (came?.id) document.getElementById(came.id)?.remove();
});
