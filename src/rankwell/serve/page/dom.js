// Building elements. Text always goes in as text: what a document says is never read as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(node.dataset, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const el = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
export const svg = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);
export const byId = (id) => document.getElementById(id);

export function select(label, options, chosen, change, properties) {
  const choices = options.map(([value, text]) => el("option", { value, selected: String(value) === String(chosen) }, text));
  const box = el("select", { ...properties, "aria-label": label, onchange: () => change(box.value) }, choices);
  return box;
}

// A select with its label in sight.
export function labelled(label, options, chosen, change) {
  return el("label", { class: "choice" }, el("span", {}, label), select(label, options, chosen, change));
}

export function number(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }).replace("-", "−");
}

export const count = (value) => value.toLocaleString("en");
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;
export const milliseconds = (value) => (value < 10 ? `${number(value, 1)} ms` : value < 1000 ? `${Math.round(value)} ms` : `${number(value / 1000, 1)} s`);
