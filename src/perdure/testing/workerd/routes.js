// Several databases behind one address, for tests. The first part of a path is the database:
//
//   /N/...                                              the shipped Worker, on database N
//   /client/v4/accounts/A/d1/database/DBN/query         Cloudflare's REST API, in its shape
//   /cron/N                                             runs the shipped scheduled()
//
// The header `X-Env` (JSON) replaces variables and secrets of the Worker for one request, and with
// `X-D1-Error` its database fails with that message: errors that D1 cannot be made to raise.
import worker from "./worker.js";

const REST = /^\/client\/v4\/accounts\/[^/]+\/d1\/database\/([^/]+)\/query$/;

export default {
  async fetch(request, env) {
    const url = new URL(request.url);
    const rest = REST.exec(url.pathname);
    if (rest) return api(request, env, env[rest[1]]);
    const [, n, path] = /^\/(\d+|cron)(\/.*)$/.exec(url.pathname) ?? [];
    if (n === "cron") return cron(request, env, path.slice(1));
    if (!env[`DB${n}`]) return new Response("There is no such database.", { status: 404 });
    url.pathname = path;
    const message = request.headers.get("X-D1-Error");
    const DB = message === null ? env[`DB${n}`] : failing(message);
    const changed = JSON.parse(request.headers.get("X-Env") ?? "{}");
    return worker.fetch(new Request(url, request), { ...env, ...changed, DB });
  },
};

function failing(message) {
  const statement = { bind: () => statement, first: fail };
  return { prepare: () => statement, batch: fail };

  async function fail() {
    throw new Error(message);
  }
}

async function cron(request, env, n) {
  const vars = await request.json();
  try {
    await worker.scheduled({}, { ...env, ...vars, DB: env[`DB${n}`] });
  } catch (error) {
    return new Response(error.message, { status: 500 });
  }
  return new Response("");
}

async function api(request, env, db) {
  if (request.headers.get("Authorization") !== `Bearer ${env.PERDURE_SECRET}`) {
    return apiError(401, 10000, "Authentication error");
  }
  if (!db) return apiError(404, 7404, "The database could not be found");
  const body = await request.json();
  try {
    const statements = (body.batch ?? [body]).map(({ sql, params }) => db.prepare(sql).bind(...(params ?? [])));
    const result = await db.batch(statements);
    return Response.json({ result, success: true, errors: [], messages: [] });
  } catch (error) {
    return apiError(400, 7500, error.message.replace(/^D1_ERROR: /, ""));
  }
}

function apiError(status, code, message) {
  const body = { result: null, success: false, errors: [{ code, message }], messages: [] };
  return Response.json(body, { status });
}
