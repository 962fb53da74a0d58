// The lists side by side: cards, the lines between them, and moving through them with the arrow keys.

import { count, el, milliseconds, number, plural, select, svg } from "./dom.js";
import { heading, snippet } from "./highlight.js";
import { ghosts } from "./notices.js";
import { FIRST } from "./search.js";
import { PANEL, address, both, comparison } from "./state.js";

export const title = (name) => (name === "bm25" ? "BM25" : name === "hybrid" ? "Hybrid" : name);

// What moved, and by how much.
function movement(row, side, otherName) {
  if (row.moved === null) {
    if (side === 0 || row.other !== null) return null;
    return el("span", { class: "moved up", title: `Not ranked by ${otherName}`, "aria-label": `new: not ranked by ${otherName}` }, "new");
  }
  const places = Math.abs(row.moved);
  const way = row.moved > 0 ? "up" : row.moved < 0 ? "down" : "same";
  if (side === 0) {
    const told = way === "same" ? `stays at ${row.other}` : `goes ${way} to ${row.other}`;
    return el("span", { class: `moved to ${way}`, title: `${otherName} ranks this document at ${row.other}`, "aria-label": told }, `→ ${row.other}`);
  }
  const mark = way === "up" ? `▲ ${places}` : way === "down" ? `▼ ${places}` : "=";
  const told = way === "same" ? "in the same place" : `${way} ${plural(places, "place")}`;
  const hint = way === "same" ? `Same rank as by ${otherName}` : `${way === "up" ? "Up" : "Down"} ${plural(places, "place")}, from rank ${row.other} by ${otherName}`;
  return el("span", { class: `moved ${way}`, title: hint, "aria-label": told }, mark);
}

// What the index knows of a document besides: an address is a link, a click on another value leaves the documents with it.
export function fields(named, state, go) {
  const values = Object.entries(named ?? {}).flatMap(([name, value]) => [value].flat().map((one) => [name, one]));
  if (!values.length) return null;
  return el("p", { class: "fields" }, values.map(([name, value]) => /^https?:\/\//.test(value) ? el("a", { href: value, target: "_blank", rel: "noopener noreferrer" }, `${value.replace(/^https?:\/\//, "")} ↗`) : el("button", {
    type: "button",
    class: "chip",
    title: `Only documents with ${name} ${value}`,
    onclick: () => go({ ...state, ...PANEL, page: 1, filter: both(state.filter, comparison(name, value)) }),
  }, `${name}: ${value}`)));
}

function card(row, side, list, found, state, { open, go: search }) {
  const other = found.lists[1 - side];
  const text = found.documents[row.id];
  const to = address({ ...state, ...PANEL, doc: row.id, by: list.name });
  const go = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button === 1) return;
    event.preventDefault();
    open(row.id, list.name);
  };
  const likely = row.relevance ?? row.probability;
  const source = row.relevance === null ? "according to the model" : "measured on judged queries";
  const told = likely === null ? null : `Probability that this document is relevant, ${source}: ${number(likely)}`;
  const link = el("a", { class: "name", href: to, onclick: go }, el("span", { class: "hidden" }, `Rank ${row.rank}, `), row.id);
  return el("li", {
    class: "card",
    data: { id: row.id, side },
    onclick: (event) => {
      // A click anywhere opens, except one that ends a selection of text.
      if (!event.target.closest("a, button") && String(getSelection()) === "") open(row.id, list.name);
    },
  },
  el("div", { class: "head" },
    el("span", { class: "rank", "aria-hidden": "true" }, count(row.rank)), link,
    other && movement(row, side, title(other.name)),
    el("span", { class: "score", title: told }, number(row.score))),
  text?.title && el("h3", { class: "heading" }, heading(text)),
  text?.text === null || text?.text === undefined
    ? el("p", { class: "text none" }, "The index keeps no text of this document.")
    : el("p", { class: "text" }, snippet(text)),
  fields(text?.fields, state, search),
  likely !== null && el("meter", { min: 0, max: 1, value: likely, "aria-label": told, title: told }));
}

// What the numbers of a ranking are: the first stage's scores, a model's, or several of them in some shares.
function unit(list, ready) {
  const blended = list.name !== FIRST && ready.blend;
  const hybrid = list.name === FIRST && ready.hybrid ? { BM25: 1 - ready.hybrid, similarity: ready.hybrid } : {};
  const shares = Object.entries(blended?.weights ?? hybrid).map(([name, share]) => `${number(100 * share, 0)} % ${title(name)}`);
  const own = list.name === FIRST ? "Higher is better. Scores are comparable within one query only." : "The model's raw score (logit). Higher is more relevant.";
  return el("span", { class: "unit", title: shares.join(", ") || own }, blended ? "blended score" : list.name === FIRST ? "score" : "model score");
}

// What was not rated beside what was is further down the list.
export function fits(row, found, { min_relevance: least }) {
  const rated = found.lists.some((list) => list.rows.some(({ relevance }) => relevance !== null));
  return !least || (row.relevance === null ? !rated : row.relevance >= least);
}

function column(list, side, found, state, ready, actions) {
  const names = [FIRST, ...(ready.models ?? [])];
  const key = side === 0 && found.lists.length === 2 ? "left" : "right";
  const head = names.length > 1
    ? select(key === "left" ? "Left ranking" : "Right ranking", names.map((name) => [name, title(name)]), list.name, (name) => {
      const taken = found.lists.length === 2 && found.lists[1 - side].name === name;
      const swapped = taken && { left: found.lists[1].name, right: found.lists[0].name };
      actions.go({ ...state, ...PANEL, page: 1, ...(taken ? swapped : { [key]: name }) });
    }, { class: "which" })
    : el("h2", {}, title(list.name));
  const [above, below] = [true, false].map((wanted) => list.rows.filter((row) => fits(row, found, ready) === wanted));
  const drawn = (rows) => rows.map((row) => card(row, side, list, found, state, actions));
  const cards = list.pending
    ? [el("li", { class: "waiting", role: "status" }, `Re-ranking the top ${count(Math.min(state.depth, found.candidates))} …`), ...ghosts()]
    : drawn(above);
  return el("section", { class: "column", data: { side }, "aria-label": `Ranked by ${title(list.name)}` },
    el("div", { class: "column-head" }, head, unit(list, ready)),
    !list.pending && !above.length && el("p", { class: "unfit", role: "status" }, "Nothing fits."),
    el("ol", { start: list.rows[0]?.rank ?? 1 }, cards),
    below.length > 0 && el("details", { class: "below" },
      el("summary", {}, `${plural(below.length, "result")} below a relevance of ${number(ready.min_relevance)}`), el("ol", { start: below[0].rank }, drawn(below))));
}

// On a narrow screen one list is in sight at a time.
function switcher(found, box) {
  const buttons = found.lists.map((list, side) => el("button", {
    type: "button",
    "aria-pressed": String(side === Number(box.dataset.side)),
    onclick: () => {
      box.dataset.side = side;
      buttons.forEach((button, number_) => button.setAttribute("aria-pressed", String(number_ === side)));
    },
  }, title(list.name)));
  return el("div", { class: "switcher", role: "group", "aria-label": "Which ranking is shown" }, buttons);
}

function pages(found, state, actions) {
  const last = Math.max(1, Math.ceil(found.candidates / state.k));
  if (last === 1) return null;
  const step = (to, label, off) => el("button", { type: "button", disabled: off, onclick: () => actions.go({ ...state, ...PANEL, page: to }) }, label);
  return el("nav", { class: "pages", "aria-label": "Pages" },
    step(state.page - 1, "← Previous", state.page <= 1), el("span", {}, `Page ${count(state.page)} of ${count(last)}`),
    step(state.page + 1, "Next →", state.page >= last));
}

// An address may name any depth.
export const depths = (own) => [...new Set([10, 20, 50, 100, 200, 500, 1000, own])].sort((a, b) => a - b);

export function about(found, state, actions) {
  const reranked = found.lists.some((list) => list.name !== FIRST);
  const pending = found.lists.some((list) => list.pending);
  const times = [`${title(FIRST)} ${milliseconds(found.ms.first)}`, reranked && !pending && `re-ranking ${milliseconds(found.ms.rerank)}`].filter(Boolean);
  return [
    state.filter && el("button", { type: "button", class: "chip", title: "Search without this filter", "aria-label": `Remove the filter ${state.filter}`, onclick: () => actions.go({ ...state, ...PANEL, page: 1, filter: "" }) }, `${state.filter} ✕`),
    found.meant && el("span", {}, "Did you mean ", el("a", { href: `?${new URLSearchParams({ q: found.meant })}` }, found.meant), "?"),
    el("span", { title: times.join(", ") }, `${plural(found.candidates, "candidate")} in ${milliseconds(found.ms.total)}`),
    reranked && el("label", { class: "choice" }, el("span", {}, "re-ranked"),
      select("How many candidates are re-ranked", depths(state.depth).map((n) => [n, `top ${n}`]), state.depth,
        (depth) => actions.go({ ...state, ...PANEL, page: 1, depth: Number(depth) }))),
    el("span", { class: "legend" },
      el("span", {}, el("mark", { class: "match", title: "Has the same stem as a query word, as BM25 counts matches" }, "matching word"))),
  ];
}

export function show(box, found, state, ready, actions) {
  box.dataset.side = found.lists.at(-1).pending ? 0 : found.lists.length - 1;
  box.classList.toggle("two", found.lists.length === 2);
  const columns = found.lists.map((list, side) => column(list, side, found, state, ready, actions));
  const lines = found.lists.length === 2 ? svg("svg", { class: "lines", "aria-hidden": "true" }) : null;
  box.replaceChildren(...[found.lists.length === 2 && switcher(found, box),
    el("div", { class: "columns" }, columns[0], lines, columns[1]), pages(found, state, actions)].filter(Boolean));
  if (lines) watch(box, lines, found);
  linkTwins(box);
}

// A line from each document's card on the left to its card on the right.
function watch(box, lines, found) {
  const draw = () => {
    const frame = lines.getBoundingClientRect();
    if (!lines.isConnected || frame.width === 0) return;
    const middle = (element) => {
      const head = element.querySelector(".head").getBoundingClientRect();
      return head.top + head.height / 2 - frame.top;
    };
    const right = new Map([...box.querySelectorAll('.card[data-side="1"]')].map((one) => [one.dataset.id, one]));
    const moved = new Map(found.lists[1].rows.map((row) => [row.id, row.moved]));
    const paths = [...box.querySelectorAll('.card[data-side="0"]')].filter((one) => right.has(one.dataset.id)).map((one) => {
      const [a, b, w] = [middle(one), middle(right.get(one.dataset.id)), frame.width];
      const way = Math.sign(moved.get(one.dataset.id) ?? 0);
      return svg("path", { d: `M0 ${a}C${w / 2} ${a} ${w / 2} ${b} ${w} ${b}`, class: way > 0 ? "up" : way < 0 ? "down" : "same", "data-id": one.dataset.id });
    });
    lines.replaceChildren(...paths);
  };
  new ResizeObserver(draw).observe(box.querySelector(".columns"));
}

// The same document in the other list lights up with the one pointed at.
function linkTwins(box) {
  const light = (id) => {
    for (const one of box.querySelectorAll("[data-id]")) one.classList.toggle("lit", one.dataset.id === id);
  };
  const near = (event) => light(event.target.closest?.(".card")?.dataset.id);
  for (const one of box.querySelectorAll(".columns")) {
    one.addEventListener("mouseover", near);
    one.addEventListener("focusin", near);
    one.addEventListener("mouseleave", () => light(undefined));
  }
}

export function move(key, box) {
  const visible = [...box.querySelectorAll(".card")].filter((one) => one.offsetParent !== null);
  const here = document.activeElement?.closest?.(".card");
  const focus = (target) => {
    target?.querySelector(".name").focus({ preventScroll: true });
    target?.scrollIntoView({ block: "nearest" });
    return Boolean(target);
  };
  const on = (side) => visible.filter((one) => one.dataset.side === String(side));
  if (!here) return key === "ArrowDown" && focus(on(box.dataset.side)[0] ?? visible[0]);
  const own = on(here.dataset.side);
  const at = own.indexOf(here);
  if (key === "ArrowDown") return focus(own[at + 1]);
  if (key === "ArrowUp") return focus(own[at - 1]) || "top";
  const there = on(key === "ArrowLeft" ? 0 : 1);
  if (there.includes(here)) return false;
  return focus(there.find((one) => one.dataset.id === here.dataset.id) ?? there[Math.min(at, there.length - 1)]);
}
