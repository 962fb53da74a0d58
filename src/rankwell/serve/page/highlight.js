// A document's text with its matching and split words marked.
// Spans count code points, so texts are cut as arrays of them.

import { el } from "./dom.js";

const SNIPPET = 340;
const LEAD = 70;

function spans(document_) {
  const found = new Map();
  for (const { begin, end, term } of document_.matches ?? []) found.set(begin, { begin, end, term });
  for (const { begin, end, pieces } of document_.split_words ?? []) {
    found.set(begin, { ...(found.get(begin) ?? { begin, end }), pieces });
  }
  return [...found.values()].sort((a, b) => a.begin - b.begin);
}

function marked(text, span) {
  const split = span.pieces && span.pieces.join(" + ").replaceAll("##", "");
  const classes = [span.term === undefined ? "" : "match", split ? "split" : ""].filter(Boolean).join(" ");
  return el(span.term === undefined ? "span" : "mark", { class: classes, title: split ? `split into ${split}` : null }, text);
}

// The stretch of a long text that shows most of the query's distinct terms, the earliest of those.
function stretch(characters, found) {
  if (characters.length <= SNIPPET) return [0, characters.length];
  const matches = found.filter((span) => span.term !== undefined);
  let best = 0;
  let most = 0;
  for (const [number, first] of matches.entries()) {
    const terms = new Set();
    for (let i = number; i < matches.length && matches[i].end <= first.begin + SNIPPET - LEAD; i++) terms.add(matches[i].term);
    if (terms.size > most) [best, most] = [first.begin, terms.size];
  }
  let begin = best <= LEAD ? 0 : best - LEAD;
  while (begin > 0 && begin < best && !/\s/.test(characters[begin - 1])) begin++;
  return [begin, Math.min(characters.length, begin + SNIPPET)];
}

function render(characters, found, begin, end) {
  const parts = [];
  let at = begin;
  for (const span of found) {
    if (span.begin < at || span.end > end) continue;
    parts.push(characters.slice(at, span.begin).join(""), marked(characters.slice(span.begin, span.end).join(""), span));
    at = span.end;
  }
  parts.push(characters.slice(at, end).join(""));
  return parts;
}

export function whole(document_) {
  const characters = Array.from(document_.text);
  return render(characters, spans(document_), 0, characters.length);
}

export function heading(document_) {
  const characters = Array.from(document_.title);
  return render(characters, spans({ matches: document_.title_matches }), 0, characters.length);
}

export function snippet(document_) {
  const characters = Array.from(document_.text);
  const found = spans(document_);
  const [begin, end] = stretch(characters, found);
  return [begin > 0 && "… ", ...render(characters, found, begin, end), end < characters.length && " …"];
}
