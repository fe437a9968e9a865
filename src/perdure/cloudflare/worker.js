/**
 * The Worker between perdure and its D1 database.
 *
 * `POST /v1/batch` runs a list of SQL statements as one D1 batch, which is one transaction.
 * `GET /v1/status` shows the last result of the cron. `scheduled()` POSTs to `TICK_URL`.
 * Anyone who has `PERDURE_SECRET` can run any SQL: bind the journal's database and no other.
 *
 * A body is a frame: the length of the head (4 bytes, big-endian), the head (JSON), then all blobs
 * one after the other. In the head `{"b": n}` stands for the next n bytes of the blobs.
 */

const SHORTEST_SECRET = 32;
const TICK_TRIES = 3;
const TICK_SECONDS = 100;
const TICK_PAUSE_SECONDS = 5; // before the second try; twice as long before the third

const STATUS = {
  bad_request: 400,
  unauthorized: 401,
  refused: 409,
  statement: 422,
  unknown: 500,
  busy: 503,
  full: 507,
};

/**
 * What an error of D1 means, first match first. All but `unknown` say that nothing was written.
 * D1 ends the message of a failed statement with SQLite's code, as in
 * `D1_ERROR: UNIQUE constraint failed: t.id: SQLITE_CONSTRAINT`. Words before it may be the user's.
 */
const KINDS = [
  ["refused", /NOT NULL constraint failed: perdure_\w+\.\w+: SQLITE_CONSTRAINT/],
  ["full", /: SQLITE_FULL|exceeded maximum DB size/i],
  ["busy", /: SQLITE_(BUSY|LOCKED)/],
  ["statement", /: SQLITE_(CONSTRAINT|ERROR|TOOBIG|MISMATCH|RANGE|AUTH)|^D1_TYPE/],
  ["statement", /Wrong number of parameter bindings|too many SQL variables/],
  ["statement", /^(D1_ERROR: )?(To execute a transaction|No SQL statements|SQL code did not contain)/],
  ["busy", /overloaded|too many requests/i],
];

export default {
  async fetch(request, env) {
    const refusal = await unauthorized(request, env.PERDURE_SECRET);
    if (refusal) return failure("unauthorized", refusal);
    const path = new URL(request.url).pathname;
    if (request.method === "POST" && path.endsWith("/v1/batch")) return batch(request, env.DB);
    if (request.method === "GET" && path.endsWith("/v1/status")) return status(env.DB);
    return failure("bad_request", `There is no ${request.method} ${path}.`);
  },

  async scheduled(controller, env) {
    if (!env.TICK_URL) return;
    const result = await tick(env);
    try {
      await keepCronResult(env.DB, result);
    } finally {
      // Thrown last, so that Cloudflare shows the event as failed.
      if (result.error) throw new Error(`The tick failed at attempt ${result.tries}: ${result.error}`);
    }
  },
};

/** Why a request may not pass, or null. */
async function unauthorized(request, secret) {
  if (!secret || secret.length < SHORTEST_SECRET) {
    return `The Worker's PERDURE_SECRET is missing or shorter than ${SHORTEST_SECRET} characters.`;
  }
  const given = (request.headers.get("Authorization") ?? "").replace(/^Bearer /i, "");
  const digests = await Promise.all([given, secret].map(digest));
  return crypto.subtle.timingSafeEqual(...digests) ? null : "The bearer secret is wrong or missing.";
}

function digest(text) {
  return crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
}

async function batch(request, db) {
  let calls, names;
  try {
    ({ calls, names } = readCalls(await request.arrayBuffer()));
  } catch (error) {
    return failure("bad_request", error.message);
  }
  if (calls.length === 0) return frame(200, { ok: true, rows: [], read: 0, written: 0, size: 0 });
  let results;
  try {
    results = await db.batch(calls.map(({ sql, params }) => db.prepare(sql).bind(...params)));
  } catch (error) {
    return failure(kindOf(error.message), error.message);
  }
  const blobs = [];
  const metas = results.map((result) => result.meta);
  return frame(
    200,
    {
      ok: true,
      rows: results.map((result) => result.results.map((row) => cells(row, blobs))),
      ...(names && { names: results.map((result) => Object.keys(result.results[0] ?? {})) }),
      read: sum(metas.map((meta) => meta.rows_read ?? 0)),
      written: sum(metas.map((meta) => meta.rows_written ?? 0)),
      size: metas.at(-1).size_after ?? 0,
    },
    blobs,
  );
}

/** The statements of a request's frame, and whether it wants the names of columns; throws if it is not one. */
function readCalls(body) {
  if (body.byteLength < 4) throw new Error("The frame is shorter than its length field.");
  let at = 4 + new DataView(body).getUint32(0);
  if (at > body.byteLength) throw new Error("The frame ends inside its head.");
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(body, 4, at - 4)));
  if (!Array.isArray(head?.sql) || !Array.isArray(head.calls)) {
    throw new Error("The head needs the lists `sql` and `calls`.");
  }
  const calls = head.calls.map(([index, params]) => {
    const sql = head.sql[index];
    if (typeof sql !== "string") throw new Error(`There is no SQL text number ${index}.`);
    return { sql, params: params.map(value) };
  });
  if (at !== body.byteLength) throw new Error("The frame has more bytes than its blobs.");
  return { calls, names: head.names === true };

  function value(param) {
    if (param === null || typeof param === "number" || typeof param === "string") return param;
    const length = param.b;
    if (!Number.isInteger(length) || length < 0) throw new Error("A parameter has no known type.");
    if (at + length > body.byteLength) throw new Error("The frame ends inside a blob.");
    at += length;
    // As text for `unhex(?)`: the binding would make a list of numbers of the bytes.
    return new Uint8Array(body, at - length, length).toHex().toUpperCase();
  }
}

/** The cells of a row in the order of its columns; blobs are put at the end of `blobs`. */
function cells(row, blobs) {
  return Object.entries(row).map(([column, cell]) => {
    let blob;
    if (typeof cell === "string" && cell.startsWith("X'") && /^c\d+$/.test(column)) {
      try {
        blob = Uint8Array.fromHex(cell.slice(2, -1)); // SQLite's quote() of a blob
      } catch {
        return cell; // a text in a column of the user's: the batch is committed, so answer
      }
    } else if (Array.isArray(cell) || cell instanceof ArrayBuffer) {
      blob = new Uint8Array(cell);
    } else {
      return cell;
    }
    blobs.push(blob);
    return { b: blob.byteLength };
  });
}

function kindOf(message) {
  return KINDS.find(([, pattern]) => pattern.test(message))?.[0] ?? "unknown";
}

function failure(kind, message) {
  return frame(STATUS[kind], { ok: false, kind, message });
}

function frame(status, head, blobs = []) {
  const text = new TextEncoder().encode(JSON.stringify(head));
  const body = new Uint8Array(4 + text.byteLength + sum(blobs.map((blob) => blob.byteLength)));
  new DataView(body.buffer).setUint32(0, text.byteLength);
  let at = 4;
  for (const part of [text, ...blobs]) {
    body.set(part, at);
    at += part.byteLength;
  }
  const headers = { "Content-Type": "application/octet-stream", "X-Perdure": "1" };
  return new Response(body, { status, headers });
}

function sum(numbers) {
  return numbers.reduce((total, number) => total + number, 0);
}

async function status(db) {
  let cron;
  try {
    cron = await lastCronResult(db);
  } catch (error) {
    return failure(kindOf(error.message), error.message);
  }
  const body = { worker: "perdure", protocol: 1, cron };
  return Response.json(body, { headers: { "X-Perdure": "1" } });
}

/** POST to the Python host; a host that is down or busy is asked again. */
async function tick(env) {
  const time = new Date().toISOString();
  const pause = Number(env.TICK_PAUSE_SECONDS ?? TICK_PAUSE_SECONDS) * 1000;
  for (let tries = 1; ; tries++) {
    const answer = await post(env.TICK_URL, env.TICK_SECRET);
    const again = answer.status === null || answer.status === 429 || answer.status >= 500;
    if (!answer.error || !again || tries === TICK_TRIES) return { time, tries, ...answer };
    await new Promise((resume) => setTimeout(resume, pause * tries));
  }
}

async function post(url, secret) {
  try {
    const response = await fetch(url, {
      method: "POST",
      headers: { Authorization: `Bearer ${secret ?? ""}` },
      redirect: "manual", // the secret is for this address only
      signal: AbortSignal.timeout(TICK_SECONDS * 1000),
    });
    const body = (await response.text()).slice(0, 500);
    const error = response.ok ? null : `The host answered ${response.status}: ${body}`;
    return { status: response.status, body, error };
  } catch (error) {
    return { status: null, body: "", error: `The host cannot be reached: ${error.message}` };
  }
}

async function keepCronResult(db, result) {
  await db.batch([
    db.prepare("CREATE TABLE IF NOT EXISTS perdure_cron (id INTEGER PRIMARY KEY, result TEXT NOT NULL)"),
    db.prepare("INSERT OR REPLACE INTO perdure_cron VALUES (1, ?)").bind(JSON.stringify(result)),
  ]);
}

async function lastCronResult(db) {
  try {
    const text = await db.prepare("SELECT result FROM perdure_cron").first("result");
    return text === null ? null : JSON.parse(text);
  } catch (error) {
    if (/no such table/.test(error.message)) return null; // the cron has not run yet
    throw error;
  }
}
