// What is said where results would be: loading, nothing found, refused, busy, offline, a key wanted.

import { rememberKey, sendable } from "./api.js";
import { el, number } from "./dom.js";

const TITLES = {
  offline: "No connection", overloaded: "The service is busy", draining: "The service is restarting",
  deadline: "That took too long", validation: "This cannot be searched", unavailable: "Not available here",
  unauthorized: "A key is needed", not_found: "Not found", too_large: "Too large",
};
const AGAIN = new Set(["offline", "overloaded", "draining", "deadline", "broken"]);
const MOST_RETRIES = 5;

export function notice(kind, head, line, ...more) {
  return el("div", { class: `notice ${kind}`, role: kind === "error" ? "alert" : "note" },
    el("p", {}, head && el("strong", {}, head, " "), line), more);
}

export const ghosts = () => Array.from({ length: 5 }, () => el("li", { class: "card ghost", "aria-hidden": "true" }, el("i"), el("i"), el("i")));

export function skeleton() {
  const column = () => el("section", { class: "column" }, el("ol", {}, ghosts()));
  return el("div", { class: "columns loading" }, column(), column());
}

// `retry` is called at the end of the countdown, and by the button; `tries` counts the calls so far. `less` is the label
// and the action of another button; `during` is the heading if only a part of the work failed.
export function refusal(error, retry, tries = 0, { less = null, during = null } = {}) {
  const head = during ?? TITLES[error.kind] ?? "Something went wrong";
  if (error.kind === "unauthorized") return keyForm(error, retry);
  const box = notice("error", `${head}.`, sentence(error.message));
  if (error.request) box.append(el("p", { class: "small" }, "Request ", el("code", {}, error.request)));
  const smaller = less && el("button", { class: "primary", type: "button", onclick: less[1] }, less[0]);
  if (!AGAIN.has(error.kind)) {
    if (smaller) box.append(el("p", { class: "actions" }, smaller));
    return box;
  }
  const button = el("button", { type: "button", onclick: () => again() }, "Try again");
  // The countdown is not read out second by second.
  const clock = el("span", { class: "clock", "aria-hidden": "true" });
  box.append(el("p", { class: "actions" }, smaller ?? [], button, clock));
  let timer = null;
  let over = false;
  const again = () => {
    if (over) return;
    over = true;
    clearInterval(timer);
    removeEventListener("online", again);
    if (box.isConnected) retry(tries + 1);
  };
  if (error.kind === "offline") addEventListener("online", again);
  if (error.retryAfter !== null && tries < MOST_RETRIES) {
    let left = error.retryAfter;
    const tell = () => (clock.textContent = `again in ${left} s`);
    timer = setInterval(() => {
      left -= 1;
      tell();
      if (left <= 0 || !box.isConnected) again();
    }, 1000);
    tell();
  }
  return box;
}

function keyForm(error, retry) {
  const field = el("input", { type: "password", name: "key", required: true, placeholder: "Key", autocomplete: "current-password", "aria-label": "Key" });
  const told = el("p", { class: "wrong" }, error.keyed && "That was not the right key.");
  const form = el("form", {
    class: "actions",
    onsubmit: (event) => {
      event.preventDefault();
      if (sendable(field.value)) {
        rememberKey(field.value);
        retry(0);
      } else {
        told.textContent = "That cannot be a key: keys are made of plain letters, digits and signs (ASCII).";
        field.select();
      }
    },
  }, field, el("button", { class: "primary", type: "submit" }, "Use this key"));
  // Whoever typed a key types the next one in the same place; the field can have the focus once it is in the page.
  if (error.keyed) queueMicrotask(() => field.focus());
  return el("div", { class: "notice", role: "alert" },
    el("p", {}, el("strong", {}, "This service needs a key. "), "It is kept until this tab is closed."), told, form);
}

export function withoutModel({ note, hybrid }) {
  if (!hybrid) return notice("info", "BM25 only.", sentence(note));
  // The shares say more than the service's note.
  const shares = `${number(100 * (1 - hybrid), 0)} % BM25, ${number(100 * hybrid, 0)} % similarity`;
  return notice("info", "Hybrid search only.", `No re-ranker is served: results come from hybrid search (${shares}); add one with --model.`);
}

function sentence(line) {
  const text = line.charAt(0).toUpperCase() + line.slice(1);
  return /[.!?…]$/.test(text) ? text : `${text}.`;
}

export function start(ready) {
  const first = ready.hybrid ? "hybrid search" : "BM25";
  const about = ready.index ? `${ready.index.documents.toLocaleString("en")} documents` : "";
  return el("div", { class: "start" },
    el("h1", {}, ready.reranker ? "See what re\u2011ranking changes." : "Search the collection."),
    el("p", {}, ready.reranker
      ? `Type a query: ${first} and the re-ranker order ${about} side by side, with what moved, what matched, and why.`
      : ready.hybrid ? `Type a query: words and meaning find it among ${about}.` : `Type a query: BM25 searches ${about}.`),
    ready.examples?.length > 0 && el("p", { class: "examples" }, "Try ",
      ready.examples.map((text) => [el("a", { href: `?${new URLSearchParams({ q: text })}` }, text), " "])),
    el("ul", { class: "keys" }, [["/", "search"], ["↑ ↓", "through results"], ["← →", "across lists"], ["Enter", "open"], ["Esc", "close"]]
      .map(([key, what]) => el("li", {}, el("kbd", {}, key), what))));
}

export function nothing(state, found) {
  const beyond = found.candidates > 0;
  return el("div", { class: "start" }, el("h2", {}, beyond ? "There is no such page." : "Nothing found."),
    el("p", {}, beyond ? "The results end before it." : sentence(found.nothing)));
}
