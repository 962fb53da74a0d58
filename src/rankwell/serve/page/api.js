// The service. Every failure is a Refusal, with what a user can be told.

export class Refusal extends Error {
  constructor(kind, message, { status = 0, retryAfter = null, request = null, keyed = false } = {}) {
    super(message);
    Object.assign(this, { kind, status, retryAfter, request, keyed });
  }
}

const KEY = "rankwell-key";

// Of anything else a browser makes no header, or one in another encoding than the service's.
export const sendable = (key) => /^[ -~]+$/.test(key);

export function rememberKey(key) {
  sessionStorage.setItem(KEY, key);
}

// A stored key that cannot be sent is as good as none: the service then asks for one.
function storedKey() {
  const key = sessionStorage.getItem(KEY);
  return key && sendable(key) ? key : null;
}

async function ask(path, options) {
  let answer;
  let keyed = false;
  try {
    const key = storedKey();
    keyed = key !== null;
    const headers = keyed ? { ...options.headers, Authorization: `Bearer ${key}` } : options.headers;
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("offline", navigator.onLine ? "The service does not answer." : "You are offline.");
  }
  let body = null;
  try {
    body = await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  // 503 of /ready is an answer: it says what is going on.
  if (body !== null && (answer.ok || (path === "ready" && body.status))) return body;
  const seconds = Number(answer.headers.get("Retry-After"));
  throw new Refusal(body?.error_type ?? "broken", body?.message ?? `The service answered with status ${answer.status}.`, {
    status: answer.status,
    retryAfter: answer.headers.has("Retry-After") && Number.isFinite(seconds) ? Math.max(1, Math.ceil(seconds)) : null,
    request: body?.request_id ?? null,
    keyed,
  });
}

// A click on what the service has logged; the page does not wait for it, and goes on without it.
export const clicked = (query_id, id, ordinal) => {
  post("events", { query_id, event_attributes: { object: { object_id: id }, position: { ordinal } } }).catch(() => {});
};

export const get = (path) => ask(path, {});

export function post(path, body, signal) {
  return ask(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, signal });
}
