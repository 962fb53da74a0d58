// The attention map on a canvas: rows attend to columns. Hover, touch or the arrow keys read single cells.

import { el, number } from "./dom.js";

const FONT = "11px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace";
const LABELLED = 13; // pixels of a cell from which on tokens are written beside it

const AXES = {
  cross: [(token) => token.field === "query", (token) => token.field === "document"],
  back: [(token) => token.field === "document", (token) => token.field === "query"],
  whole: [() => true, () => true],
};

export function attentionMap(found, which) {
  const [rowFilter, columnFilter] = AXES[which] ?? AXES.cross;
  const rows = found.tokens.filter(rowFilter);
  const columns = found.tokens.filter(columnFilter);
  if (!rows.length || !columns.length) return el("p", { class: "muted" }, "There is nothing on one side of this map.");
  const canvas = el("canvas", { tabindex: 0, role: "img", "aria-describedby": "cell" });
  canvas.setAttribute("aria-label", `Attention of ${rows.length} tokens to ${columns.length} tokens, layer ${found.layer}, head ${found.head}. Arrow keys read single cells.`);
  const cell = el("p", { class: "cell", id: "cell", "aria-live": "polite" }, "Point at a cell to read it.");
  const chosen = el("i", { class: "chosen", "aria-hidden": "true" });
  const frame = el("div", { class: "map", tabindex: -1 }, canvas, chosen);
  const drawing = { found, rows, columns, canvas, frame, at: null };
  const wide = el("span", { class: "small muted", hidden: true }, "Scroll the map sideways to see all of it.");
  const paint = () => {
    if (!canvas.isConnected) return;
    draw(drawing);
    wide.hidden = frame.scrollWidth <= frame.clientWidth + 1;
  };
  const choose = (row, column) => {
    drawing.at = row === null ? null : [row, column];
    cell.replaceChildren(...(row === null ? ["Point at a cell to read it."] : reading(drawing, row, column)));
    paint();
  };
  new ResizeObserver(paint).observe(frame);
  const retheme = () => (canvas.isConnected ? paint() : document.removeEventListener("themechange", retheme));
  document.addEventListener("themechange", retheme);

  const point = (event) => {
    const { left, top } = canvas.getBoundingClientRect();
    const { x, y, width, height } = drawing.layout;
    const column = Math.floor((event.clientX - left - x) / width);
    const row = Math.floor((event.clientY - top - y) / height);
    const inside = row >= 0 && row < rows.length && column >= 0 && column < columns.length;
    choose(inside ? row : null, column);
  };
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("pointerleave", () => choose(null));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [row, column] = drawing.at ?? [-step[0], -step[1]];
    choose(clamp(row + step[0], rows.length), clamp(column + step[1], columns.length));
    reveal(drawing, chosen);
  });
  const closed = rows.some((a) => columns.some((b) => !found.open[a.position][b.position]));
  return el("figure", { class: "attention" }, frame, el("figcaption", {}, cell, wide, closed && el("span", { class: "swatch" }, "closed by the rule")));
}

const clamp = (value, size) => Math.min(Math.max(value, 0), size - 1);

// Scrolls to the chosen cell: a canvas has no parts to scroll to, so an unseen element is laid over it.
// The first cells reach to the edge, so that the tokens beside them come into sight again.
function reveal({ canvas, layout, at: [row, column] }, chosen) {
  const { x, y, width, height } = layout;
  const [left, top] = [column && x + column * width, row && y + row * height];
  chosen.style.left = `${canvas.offsetLeft + left}px`;
  chosen.style.top = `${canvas.offsetTop + top}px`;
  chosen.style.width = `${x + (column + 1) * width - left}px`;
  chosen.style.height = `${y + (row + 1) * height - top}px`;
  chosen.scrollIntoView({ block: "nearest", inline: "nearest" });
}

function reading({ found, rows, columns }, row, column) {
  const [a, b] = [rows[row], columns[column]];
  const open = found.open[a.position][b.position];
  const weight = number(100 * found.attention[a.position][b.position], 1);
  return [el("b", {}, a.piece), " → ", el("b", {}, b.piece), open ? `: ${weight} %` : ": closed by the rule"];
}

// Where cells lie. Where they are large enough tokens are written beside them; where the map is wide, it scrolls.
function layOut({ rows, columns, frame }, context) {
  const room = frame.clientWidth;
  context.font = FONT;
  const widest = (tokens) => Math.ceil(Math.max(...tokens.map((token) => context.measureText(token.piece).width)));
  const square = rows.length === columns.length;
  let width = square ? Math.floor((room - 10) / columns.length) : 16;
  if (!square && columns.length * 16 < room - 140) width = Math.min(34, Math.floor((room - 140) / columns.length));
  if (square) width = Math.min(Math.max(width, 2), 22);
  const height = square ? width : 16;
  const rowLabels = height >= LABELLED;
  const columnLabels = width >= LABELLED;
  const x = rowLabels ? Math.min(widest(rows), 110) + 8 : 2;
  const y = columnLabels ? Math.min(widest(columns), 110) + 8 : 2;
  if (square && rowLabels) width = Math.min(width, Math.max(2, Math.floor((room - x - 4) / columns.length)));
  return { x, y, width, height: square ? width : height, rowLabels, columnLabels };
}

function draw(drawing) {
  const { found, rows, columns, canvas, at } = drawing;
  const context = canvas.getContext("2d");
  const layout = layOut(drawing, context);
  drawing.layout = layout;
  const { x, y, width, height } = layout;
  const size = [x + columns.length * width + 2, y + rows.length * height + 2];
  const scale = window.devicePixelRatio || 1;
  [canvas.width, canvas.height] = size.map((value) => Math.round(value * scale));
  [canvas.style.width, canvas.style.height] = size.map((value) => `${value}px`);
  context.scale(scale, scale);
  const colours = getComputedStyle(canvas);
  const [ink, muted, accent, closed] = ["--ink", "--muted", "--accent", "--closed"].map((name) => colours.getPropertyValue(name).trim());

  let most = 1e-9;
  for (const a of rows) for (const b of columns) most = Math.max(most, found.attention[a.position][b.position]);
  const gap = width > 5 && height > 5 ? 1 : 0;
  for (const [i, a] of rows.entries()) {
    for (const [j, b] of columns.entries()) {
      const open = found.open[a.position][b.position];
      // A power below 1: most weights are small, and their differences are what one looks for.
      context.globalAlpha = open ? 0.04 + 0.96 * (found.attention[a.position][b.position] / most) ** 0.6 : 1;
      context.fillStyle = open ? accent : closed;
      context.fillRect(x + j * width, y + i * height, width - gap, height - gap);
    }
  }
  context.globalAlpha = 1;
  context.font = FONT;
  context.textBaseline = "middle";
  if (layout.rowLabels) {
    context.textAlign = "right";
    rows.forEach((token, i) => label(context, token, at?.[0] === i ? ink : muted, x - 6, y + (i + 0.5) * height, x - 8));
  }
  if (layout.columnLabels) {
    context.textAlign = "left";
    columns.forEach((token, j) => {
      context.save();
      context.translate(x + (j + 0.5) * width, y - 6);
      context.rotate(-Math.PI / 2);
      label(context, token, at?.[1] === j ? ink : muted, 0, 0, y - 8);
      context.restore();
    });
  }
  if (at) {
    context.strokeStyle = ink;
    context.lineWidth = 1.5;
    context.strokeRect(x + at[1] * width - 0.5, y + at[0] * height - 0.5, Math.max(width, 3), Math.max(height, 3));
  }
}

function label(context, token, colour, x, y, room) {
  context.fillStyle = colour;
  let text = token.piece;
  while (text.length > 2 && context.measureText(text).width > room) text = `${text.slice(0, -2)}…`;
  context.fillText(text, x, y);
}
