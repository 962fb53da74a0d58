// Experiments: the tables of a suite's results.json with a plot of each measure, from the service or from a file.

import { get } from "./api.js";
import { count, el, labelled, number, plural, svg } from "./dom.js";
import { notice } from "./notices.js";

const held = { offered: null, opened: null };

async function offered() {
  // A service that was given no experiments has no such path.
  held.offered ??= get("experiments").then((answer) => answer.experiments ?? [], () => []);
  return held.offered;
}

export async function showExperiments(box, state, change) {
  const sets = [...(held.opened ? [held.opened] : []), ...(await offered())];
  const chosen = sets.find((set) => set.name === state.set) ?? sets[0];
  const file = el("input", { type: "file", accept: ".json,application/json", class: "hidden", id: "results-file", onchange: () => take(file.files[0], box, change) });
  const pick = el("p", { class: "pick" }, file, el("label", { class: "button", for: "results-file" }, "Open results.json"),
    chosen && sets.length > 1 && labelled("Experiment", sets.map(({ name }) => [name, name]), chosen.name, (set) => change({ set })));
  if (!chosen) {
    box.replaceChildren(el("div", { class: "start" }, el("h1", {}, "Experiments"),
      el("p", {}, "Open the ", el("code", {}, "results.json"), " that ", el("code", {}, "rankwell experiment"), " wrote: its tables and plots are shown here. The file stays on your machine."), pick));
    return;
  }
  const { tables = {}, failures = {} } = chosen.results;
  box.replaceChildren(...[
    el("div", { class: "experiment-head" }, el("h1", {}, chosen.name), pick),
    Object.keys(failures).length > 0 && notice("info", "Some runs failed.", Object.entries(failures).map(([name, why]) => `${name}: ${why}`).join("; ")),
    ...Object.entries(tables).map(([place, table]) => section(place, table, state, change)),
    ...(chosen.plots ?? []).map((plot) => el("figure", { class: "plot" }, el("img", { src: plot, alt: `Plot of ${chosen.name}`, loading: "lazy" }))),
  ].filter(Boolean));
}

async function take(file, box, change) {
  try {
    const results = JSON.parse(await file.text());
    if (typeof results?.tables !== "object") throw new Error("it has no tables");
    held.opened = { name: file.name, results };
    change({ set: file.name });
  } catch (error) {
    box.append(notice("error", "This is not an experiment's results.json:", error.message));
  }
}

function section(place, table, state, change) {
  const measures = Object.keys(Object.values(table.mean)[0] ?? {});
  if (!measures.length) return null;
  const measure = measures.includes(state.measure) ? state.measure : measures[0];
  return el("section", { class: "experiment" },
    el("h2", {}, place, el("small", {}, ` ${plural(table.queries, "query", "queries")}, baseline ${table.baseline}`)),
    figures(table, measures),
    el("div", { class: "controls" }, labelled("Plot of", measures.map((name) => [name, name]), measure, (name) => change({ measure: name }))),
    plot(table, measure));
}

function contrast(table, run, measure) {
  return table.contrasts.find((one) => one.run === run && one.measure === measure);
}

function figures(table, measures) {
  const best = Object.fromEntries(measures.map((name) => [name, Math.max(...Object.values(table.mean).map((own) => own[name]))]));
  const cell = (run, measure) => {
    const value = table.mean[run][measure];
    const found = contrast(table, run, measure);
    const sd = table.sd?.[run]?.[measure];
    const sure = found && found.corrected < table.level;
    const hint = found && `${found.wins} better, ${found.ties} equal, ${found.losses} worse; p ${number(found.corrected, 4)} (corrected)`;
    return el("td", { class: value === best[measure] ? "best" : null, title: hint },
      number(value, 4), sd !== null && sd !== undefined && el("small", {}, ` ± ${number(sd, 4)}`),
      found && el("small", { class: found.difference > 0 ? "up" : found.difference < 0 ? "down" : null },
        ` ${found.difference > 0 ? "+" : found.difference < 0 ? "−" : "±"}${number(Math.abs(found.difference), 4)}${sure ? " *" : ""}`));
  };
  const rows = Object.keys(table.mean).map((run) => el("tr", {},
    el("th", { scope: "row" }, run, run === table.baseline && el("small", {}, " baseline")),
    el("td", {}, table.seeds?.[run] === undefined ? "" : count(table.seeds[run])), measures.map((measure) => cell(run, measure))));
  return el("div", { class: "table", tabindex: 0, role: "region", "aria-label": "Figures" },
    el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "variant"), el("th", { scope: "col" }, "seeds"), measures.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, rows)),
    el("p", { class: "muted small" }, `* differs from the baseline (${table.test} test, corrected, level ${table.level}). Bold: the best. ±: standard deviation between seeds.`));
}

// One dot a variant, with the deviation between seeds; a line at the baseline.
function plot(table, measure) {
  const runs = Object.keys(table.mean);
  const value = (run) => table.mean[run][measure];
  const sd = (run) => table.sd?.[run]?.[measure] ?? 0;
  const low = Math.min(...runs.map((run) => value(run) - sd(run)));
  const high = Math.max(...runs.map((run) => value(run) + sd(run)));
  const pad = (high - low || Math.abs(high) || 1) * 0.08;
  const width = Math.max(300, Math.min(720, innerWidth - 40)); // drawn for the screen it is on, so that its text is of one size
  const left = width < 500 ? 124 : 190;
  const [right, row, letters] = [64, 30, Math.floor(left / 7.4)];
  const at = (v) => left + ((v - low + pad) / (high - low + 2 * pad)) * (width - left - right);
  const height = runs.length * row + 14;
  const base = at(value(table.baseline));
  const marks = runs.map((run, i) => {
    const y = i * row + row / 2 + 6;
    const [x, a, b] = [at(value(run)), at(value(run) - sd(run)), at(value(run) + sd(run))];
    return svg("g", { class: run === table.baseline ? "baseline" : null },
      svg("text", { x: left - 14, y: y + 4, "text-anchor": "end" }, svg("title", {}, run), run.length > letters ? `${run.slice(0, letters - 1)}…` : run),
      sd(run) > 0 && svg("path", { class: "deviation", d: `M${a} ${y}H${b}M${a} ${y - 4}v8M${b} ${y - 4}v8` }),
      svg("circle", { cx: x, cy: y, r: 5 }),
      svg("text", { class: "value", x: width - 4, y: y + 4, "text-anchor": "end" }, number(value(run), 4)));
  });
  const told = runs.map((run) => `${run} ${number(value(run), 4)}`).join(", ");
  return el("figure", { class: "plot" }, svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${measure}: ${told}` },
    svg("path", { class: "rule", d: `M${base} 0V${height}` }), marks));
}
