// The page's whole course: an address is read, shown, and changed by what the user does.

import { clicked, get } from "./api.js";
import { byId, count, plural } from "./dom.js";
import { notice, nothing, refusal, skeleton, start, withoutModel } from "./notices.js";
import { closePanel, showPanel } from "./panel.js";
import { about, depths, fits, move, show, title } from "./results.js";
import { nameFirst, search } from "./search.js";
import { PANEL, address, read, setDepth } from "./state.js";

const page = { ready: null, models: [], found: null, searched: null, abort: null };
const box = byId("results");
const query = byId("query");

function go(state, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", address(state));
  return render();
}

function open(doc, by) {
  const { logged, lists } = page.found;
  if (logged?.name === by) clicked(logged.id, doc, lists.find(({ name }) => name === by).rows.find(({ id }) => id === doc).rank);
  return go({ ...read(), ...PANEL, doc, by });
}
const close = () => read().doc && go({ ...read(), ...PANEL });
const actions = { go, open };

// What of a state changes the results.
const searchOf = ({ q, filter, left, right, page: number, k, depth }) => JSON.stringify([q, filter, left, right, number, k, depth]);

async function render() {
  let state = read();
  document.title = state.q ? `${state.q} · rankwell` : "rankwell";
  if (document.activeElement !== query || state.q !== query.value.trim()) query.value = state.q;
  if (page.ready === null && !(await connect())) return;
  state = read(); // the service names the default depth
  if (searchOf(state) !== page.searched) await results(state);
  panel();
}

function panel() {
  const state = read();
  if (!state.doc || !page.found || page.searched !== searchOf(state)) return closePanel();
  showPanel(state, page, { go, close, change: (changes) => go({ ...read(), ...changes }, { replace: true }) });
}

async function connect(tries = 0) {
  try {
    page.ready = await get("ready");
    nameFirst(page.ready);
    setDepth(page.ready.depth);
    if (page.ready.reranker) page.models = (await get("models")).models;
  } catch (error) {
    page.ready = null;
    box.replaceChildren(refusal(error, (next) => connect(next).then((done) => done && render()), tries));
    return false;
  }
  const { index, models, note, status } = page.ready;
  const parts = [index && `${index.name}: ${plural(index.documents, "document")}`, ...models];
  byId("served").textContent = parts.filter(Boolean).join(" · ");
  byId("served").title = byId("served").textContent;
  const notes = [
    note && withoutModel(page.ready),
    status === "draining" && notice("info", "The service is shutting down.", "Searches may be refused."),
    !index && notice("info", "No index here.", "This service re-ranks texts sent to its API; there is nothing to search."),
  ];
  byId("notices").replaceChildren(...notes.filter(Boolean));
  query.disabled = !index;
  return true;
}

async function results(state, tries = 0) {
  page.abort?.abort();
  page.abort = new AbortController();
  const { signal } = page.abort;
  page.searched = searchOf(state);
  page.found = null;
  closePanel();
  byId("search-view").classList.toggle("empty", !state.q && Boolean(page.ready.index));
  if (!state.q || !page.ready.index) {
    busy(false);
    byId("about").hidden = true;
    box.classList.remove("two");
    box.replaceChildren(...(page.ready.index ? [start(page.ready)] : []));
    return;
  }
  busy(true);
  // What answers at once needs no skeleton; results of before stay until then.
  const slow = setTimeout(() => box.replaceChildren(skeleton()), 250);
  try {
    const early = (found) => {
      clearTimeout(slow);
      if (!signal.aborted) shown(found, state);
    };
    shown(await search(state, page.ready, signal, early), state);
  } catch (error) {
    if (error.name === "AbortError") return; // whoever aborted it says whether anything is still going on
    failed(error, state, (next) => results(state, next).then(panel), tries);
    if (!("kind" in error)) console.error(error);
  } finally {
    clearTimeout(slow);
  }
  busy(false);
}

// What the first stage found stays when the re-ranker fails, and less work is offered.
function failed(error, state, retry, tries) {
  const fewer = depths(state.depth).filter((depth) => depth < state.depth && depth <= 50).pop();
  const partial = page.found?.lists.some((list) => list.rows.length) ? page.found : null;
  const less = partial && fewer && error.kind !== "unauthorized" && [`Re-rank the top ${fewer}`, () => go({ ...state, ...PANEL, page: 1, depth: fewer })];
  const unfiltered = error.kind === "validation" && state.filter && ["Search without the filter", () => go({ ...state, ...PANEL, page: 1, filter: "" })];
  const told = refusal(error, retry, tries, { less: less || unfiltered, during: partial && "Re-ranking failed" });
  if (partial) {
    shown({ ...partial, lists: partial.lists.filter((list) => !list.pending) }, state);
    box.prepend(told);
  } else {
    byId("about").hidden = true;
    box.classList.remove("two");
    box.replaceChildren(told);
  }
}

function shown(found, state) {
  const focused = box.contains(document.activeElement) ? document.activeElement.closest(".card")?.dataset : null;
  page.found = found;
  const any = found.lists.some((list) => list.rows.length);
  byId("about").hidden = !any && !state.filter;
  byId("about").classList.toggle("one", found.lists.length === 1);
  byId("about").replaceChildren(...about(found, state, actions).filter(Boolean));
  if (any) show(box, found, state, page.ready, actions);
  else box.replaceChildren(nothing(state, found));
  if (focused) box.querySelector(`.card[data-side="${focused.side}"][data-id="${CSS.escape(focused.id)}"] .name`)?.focus({ preventScroll: true });
  if (any && found.lists.some((list) => list.pending)) return;
  const names = found.lists.map((list) => title(list.name)).join(" and ");
  if (any && !found.lists.at(-1).rows.some((row) => fits(row, found, page.ready))) byId("said").textContent = "Nothing fits.";
  else byId("said").textContent = any ? `${plural(found.candidates, "candidate")}, page ${count(state.page)}, ranked by ${names}.` : "Nothing found.";
}

function busy(on) {
  byId("progress").hidden = !on;
  box.setAttribute("aria-busy", String(on));
}

// Keys: / to type, arrows through the results. Enter opens, because names are links; Esc closes the dialog.
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("panel").open) return;
  const typing = event.target.matches?.("input, select, textarea, button");
  if (event.key === "/" && !event.target.matches?.("input, select, textarea")) {
    event.preventDefault();
    query.select();
    query.focus();
  } else if (event.key.startsWith("Arrow") && (!typing || (event.target === query && event.key === "ArrowDown"))) {
    const moved = move(event.key, box);
    if (moved === "top") query.focus();
    if (moved) event.preventDefault();
  }
});

byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const q = query.value.trim();
  const { k, depth, left, right, filter } = read();
  const next = { ...read(""), k, depth, left, right, filter, q };
  if (searchOf(next) === page.searched) page.searched = null; // asked once more
  go(next);
});

document.addEventListener("click", (event) => {
  if (!event.target.closest?.("a.brand") || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  go(read(""));
});

addEventListener("popstate", render);
addEventListener("offline", () => byId("notices").append(notice("info offline", "You are offline.", "What is shown stays; searching works again when you are back.")));
addEventListener("online", () => document.querySelectorAll(".notice.offline").forEach((one) => one.remove()));

const THEMES = ["auto", "light", "dark"];
const NAMES = { auto: "as the system", light: "light", dark: "dark" };
const theme = byId("theme");
function setTheme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  theme.setAttribute("aria-label", `Colours: ${NAMES[name]}`);
  theme.title = `Colours: ${NAMES[name]}`;
  theme.dataset.name = name;
  document.dispatchEvent(new Event("themechange"));
}
theme.addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(theme.dataset.name) + 1) % THEMES.length];
  setTheme(next);
  try {
    localStorage.setItem("rankwell-theme", next);
  } catch { /* then it lasts as long as the page */ }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("themechange")));

setTheme(document.documentElement.dataset.theme ?? "auto");
render();
