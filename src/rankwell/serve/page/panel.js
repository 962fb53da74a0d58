// One document opened: its text, its ranks, and why a model gives it its score.

import { post } from "./api.js";
import { attentionMap } from "./attention.js";
import { byId, el, labelled, number, plural } from "./dom.js";
import { heading, whole } from "./highlight.js";
import { refusal } from "./notices.js";
import { fields, title } from "./results.js";
import { FIRST } from "./search.js";

const RULES = [["full", "every token"], ["strm", "STRM"], ["strict", "strict"], ["exact_match", "exact match"]];
const panel = byId("panel");
const held = { doc: null, asked: null, explanation: null, abort: null, close: () => {} };

panel.addEventListener("close", () => held.doc !== null && held.close());
panel.addEventListener("click", (event) => event.target === panel && panel.close()); // beside it: the backdrop

export function closePanel() {
  held.abort?.abort();
  Object.assign(held, { doc: null, asked: null, explanation: null });
  if (!panel.open) return;
  panel.close();
}

export function showPanel(state, page, actions) {
  held.close = actions.close;
  if (held.doc !== state.doc) {
    Object.assign(held, { doc: state.doc, asked: null, explanation: null });
    frame(state, page, actions);
  }
  if (!panel.open) panel.showModal();
  const fold = byId("fold");
  if (fold) fold.open = Boolean(state.why);
  if (fold?.open) explain(state, page, actions);
}

function frame(state, page, actions) {
  const ranks = page.found.lists.map((list, side) => {
    const own = list.rows.find((row) => row.id === state.doc);
    const rank = own?.rank ?? page.found.lists[1 - side]?.rows.find((row) => row.id === state.doc)?.other;
    return rank && el("span", {}, `${title(list.name)} `, el("b", {}, `#${rank}`), own && ` ${number(own.score)}`);
  }).filter(Boolean);
  const known = page.found.documents[state.doc];
  panel.replaceChildren(el("div", { class: "sheet" },
    el("header", {},
      el("div", {}, el("h2", { id: "panel-title", class: known?.title ? "heading" : "name" }, known?.title ? heading(known) : state.doc), el("p", { class: "ranks" }, known?.title && el("span", { class: "name" }, state.doc), ranks)),
      el("button", { class: "icon", type: "button", "aria-label": "Close", autofocus: true, onclick: () => panel.close() }, "✕")),
    el("div", { class: "passage" }, known?.text ? whole(known) : "The text of this document is not here."),
    fields(known?.fields, state, actions.go),
    known?.words && el("p", { class: "met" }, "Words that met: ", known.words.map(({ query, document, similarity }) => el("span", {
      class: "chip",
      title: `Of this document's words, ${document} is the most similar to ${query}: ${number(similarity)}`,
    }, `${query} ↔ ${document}`))),
    // One line is read out, not the whole explanation.
    el("p", { class: "hidden", id: "explained", role: "status" }),
    page.models.length > 0 && el("details", { id: "fold" },
      el("summary", { onclick: (event) => { event.preventDefault(); actions.change({ why: byId("fold").open ? "" : 1 }); } }, "Why this score: what the model reads, and its attention"),
      el("div", { id: "why" }))));
}

function modelOf(state, page) {
  const explainable = page.models.filter((model) => model.explainable);
  const shown = page.found.lists.map((list) => list.name).filter((name) => name !== FIRST);
  for (const name of [state.by, ...shown.reverse()]) {
    const found = explainable.find((model) => model.name === name);
    if (found) return { model: found, explainable };
  }
  return { model: explainable[0], explainable };
}

// An address may name what the model does not have.
const oneOf = (most, text) => Array.from({ length: most }, (_, i) => i + 1).find((number) => String(number) === text);

async function explain(state, page, actions, tries = 0) {
  const { model, explainable } = modelOf(state, page);
  const why = byId("why");
  if (!model) {
    why.replaceChildren(el("p", { class: "muted" }, "The models served here keep no attention, so there is nothing to explain."));
    return;
  }
  const layer = oneOf(model.layers, state.layer) ?? null;
  const head = oneOf(model.heads, state.head) ?? "mean";
  const rule = RULES.some(([name]) => name === state.rule) ? state.rule : null;
  const body = { query: page.found.query, id: state.doc, model: model.name, layer, head, attention: rule, type: null };
  const asked = JSON.stringify(body);
  if (asked === held.asked) {
    if (held.explanation) draw(why, held.explanation, state, explainable, actions);
    return;
  }
  held.abort?.abort();
  held.abort = new AbortController();
  const { signal } = held.abort;
  Object.assign(held, { asked });
  if (!why.firstChild) why.append(el("p", { class: "muted waiting" }, "Explaining …"));
  why.setAttribute("aria-busy", "true");
  try {
    const explanation = await post("explain", body, signal);
    if (held.asked !== asked) return;
    held.explanation = explanation;
    draw(why, explanation, state, explainable, actions);
    byId("explained").textContent = `Explained: relevant with ${number(100 * explanation.probability, 1)} percent.`;
  } catch (error) {
    if (error.name === "AbortError") return;
    held.asked = null;
    why.replaceChildren(refusal(error, (next) => explain(state, page, actions, next), tries));
    if (!("kind" in error)) console.error(error);
  }
  why.removeAttribute("aria-busy");
}

function draw(why, found, state, explainable, actions) {
  // A control that had the focus has it again when it is drawn anew.
  const focused = why.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  const range = (n) => Array.from({ length: n }, (_, i) => [i + 1, String(i + 1)]);
  const controls = el("div", { class: "controls" },
    explainable.length > 1 && labelled("Model", explainable.map(({ name }) => [name, name]), found.model, (by) => actions.change({ by, layer: "", head: "mean" })),
    labelled("Attention", RULES, found.rule, (rule) => actions.change({ rule })),
    labelled("Layer", range(found.layers), found.layer, (layer) => actions.change({ layer })),
    labelled("Head", [["mean", "mean"], ...range(found.heads)], found.head, (head) => actions.change({ head })),
    labelled("Show", [["cross", "query → document"], ["back", "document → query"], ["whole", "everything"]], state.map, (map) => actions.change({ map })));
  why.replaceChildren(
    verdict(found),
    el("h3", {}, "What the model reads"), tokens(found),
    el("h3", {}, "Attention"), controls, attentionMap(found, state.map), links(found));
  if (focused) why.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
}

function verdict(found) {
  const facts = [
    ["p(relevant)", `${number(100 * found.probability, 1)} %`, "Probability that this document is relevant, according to the model"],
    ["score", number(found.score, 3), "The model's raw score, computed exactly; scores in the list may be rounded (int8) and differ a little"],
    found.type && ["type", found.type, "Query type: the kind of answer the query asks for"],
    ["attention", RULES.find(([name]) => name === found.rule)?.[1] ?? found.rule, "Which tokens may attend to which"],
    found.windows.length > 1 && ["window", `${found.window} of ${found.windows.length}, the best`, "The document is long and was read in parts; the best part counts"],
  ].filter(Boolean);
  const cut = found.cut.map(({ field, pieces }) => `${plural(pieces, "token")} of the ${field}`);
  return el("div", {},
    el("dl", { class: "facts" }, facts.map(([name, value, meaning]) => el("div", { title: meaning }, el("dt", {}, name), el("dd", {}, value)))),
    el("meter", { min: 0, max: 1, value: found.probability, "aria-label": `p(relevant) ${number(found.probability)}` }),
    cut.length > 0 && el("p", { class: "muted" }, `Truncated: ${cut.join(", ")}.`));
}

// Words as the model has them: a split word is a box of pieces, and the piece that stands for it under STRM is marked.
function tokens(found) {
  const words = new Map();
  for (const word of found.words) for (const position of word.positions) words.set(position, word);
  const shown = [];
  let last = null;
  for (const token of found.tokens) {
    const word = words.get(token.position);
    if (word && word === last) {
      shown.at(-1).append(piece(token, word));
      continue;
    }
    last = word ?? null;
    const split = word && word.positions.length > 1;
    const classes = ["token", token.field, split && "several", token.match > 0 && "matched", token.marker > 0 && "marker"].filter(Boolean);
    const hint = split ? `${word.text}: under STRM, other words attend to it through “${found.tokens[word.stands].piece}”` : null;
    shown.push(el("span", { class: classes.join(" "), title: hint }, piece(token, word)));
  }
  const split = found.words.filter((word) => word.positions.length > 1);
  return el("figure", { class: "tokens" }, el("div", { class: "flow" }, shown),
    el("figcaption", {},
      el("span", {}, el("span", { class: "token query" }, "query")), el("span", {}, el("span", { class: "token document" }, "document")),
      el("span", {}, el("span", { class: "token document matched" }, "in both")),
      split.length > 0 && el("span", {}, el("span", { class: "token document several" }, el("i", {}, "split"), el("i", { class: "stands" }, "word")),
        ` ${plural(split.length, "word is", "words are")} split into several tokens; under STRM, the underlined one stands for the word`)));
}

function piece(token, word) {
  const stands = word && word.positions.length > 1 && word.stands === token.position;
  return el("i", { class: stands ? "stands" : null }, token.piece.replace(/^##/, ""));
}

function links(found) {
  if (!found.links.length) return null;
  const most = found.links[0].weight || 1;
  return el("details", { class: "links", open: true }, el("summary", {}, "Strongest links, from the query to the document"),
    el("ol", {}, found.links.map((link) => {
      const bar = el("meter", { min: 0, max: most, value: link.weight, "aria-hidden": "true" });
      return el("li", {}, el("span", {}, link.source, " → ", link.target), bar, el("span", { class: "score" }, number(link.weight, 3)));
    })));
}
