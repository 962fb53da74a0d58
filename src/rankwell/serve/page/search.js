// From a state to what is shown: which requests are made, and two lists made of their answers.

import { post } from "./api.js";
import { MOST } from "./state.js";

// What finds the candidates, as the service calls it, once the page knows what is served.
export let FIRST = "bm25";
export const nameFirst = (ready) => { FIRST = ready.hybrid ? "hybrid" : "bm25"; };

// The two sides; a side that is not served falls back to its default, two equal sides are one. An address may be of a
// time when something else found the candidates.
export function sides(state, ready) {
  const models = ready.models ?? [];
  const known = (name, usual) => (models.includes(name) ? name : ["bm25", "hybrid"].includes(name) ? FIRST : usual);
  const left = known(state.left, FIRST);
  const right = known(state.right, ready.reranks ? models[0] : FIRST);
  return left === right ? [left] : [left, right];
}

const filtered = (state) => (state.filter ? { filter: state.filter } : {});
// What fits less than the service asks for is shown, too, below a fold.
const all = (least) => (least ? { min_relevance: 0 } : {});

function row(entry, other, moved) {
  const { rank, id, score, probability = null, relevance = null } = entry;
  return { rank, id, score, probability, relevance, other, moved };
}

// With two sides, the first stage's answer is shown as soon as it is there: `early` is called with it, and the side of
// the model is marked as pending.
async function withFirst(state, chosen, model, words, least, signal, early) {
  const stages = chosen.length === 1 ? (model ? "rerank" : FIRST) : "both";
  const offset = (state.page - 1) * state.k;
  const body = { query: state.q, k: Math.min(state.k, MOST - offset), from: offset, depth: state.depth, stages, model, words, ...filtered(state), ...all(least) };
  let done = false;
  const first = chosen.length === 1 ? null : post("search", { ...body, stages: FIRST, log: false }, signal).then((answer) => {
    if (!done) early(summary(firstOnly(answer, chosen)));
  }, () => {}); // what is wrong with it is wrong with the other request, too
  let answer;
  try {
    answer = await post("search", body, signal);
  } catch (error) {
    if (error.name !== "AbortError") await first;
    throw error;
  } finally {
    done = true;
  }
  const lists = chosen.map((name, side) => {
    const from = name === FIRST ? answer.first ?? answer.results : answer.results;
    const rows = from.map((entry) => {
      const other = chosen.length === 1 ? null : name === FIRST ? entry.after : entry.before;
      // On the left: where a document goes; on the right: how far it has come.
      const moved = other === null ? null : side === 0 ? entry.rank - other : other - entry.rank;
      return row(entry, other, moved);
    });
    return { name, rows };
  });
  // Of two lists, only the model's is what the service logs.
  const logged = answer.query_id && { id: answer.query_id, name: model ?? FIRST };
  return { lists, documents: documentsOf([answer]), answers: [answer], candidates: answer.candidates, logged };
}

const documentsOf = (answers) => Object.fromEntries(answers.flatMap(({ first, results }) => [...first ?? [], ...results]).map((entry) => [entry.id, entry]));

function firstOnly(answer, chosen) {
  const lists = chosen.map((name) => (name === FIRST
    ? { name, rows: answer.results.map((entry) => row(entry, null, null)) } : { name, rows: [], pending: true }));
  return { lists, documents: documentsOf([answer]), answers: [answer], candidates: answer.candidates };
}

// Two models have no ranks of each other: both rank all candidates, and the page is cut here.
async function twoModels(state, chosen, words, signal) {
  const body = { query: state.q, k: state.depth, depth: state.depth, stages: "rerank", words, log: false, ...filtered(state) };
  const answers = await Promise.all(chosen.map((model) => post("search", { ...body, model }, signal)));
  const ranks = answers.map((answer) => new Map(answer.results.map((entry) => [entry.id, entry.rank])));
  const begin = (state.page - 1) * state.k;
  const lists = chosen.map((name, side) => ({
    name,
    rows: answers[side].results.slice(begin, begin + state.k).map((entry) => {
      const other = ranks[1 - side].get(entry.id) ?? null;
      return row(entry, other, other === null ? null : side === 0 ? entry.rank - other : other - entry.rank);
    }),
  }));
  return { lists, documents: documentsOf(answers), answers, candidates: Math.min(...answers.map((answer) => answer.candidates)) };
}

export async function search(state, ready, signal, early) {
  const chosen = sides(state, ready);
  const models = chosen.filter((name) => name !== FIRST);
  const words = Boolean(ready.words);
  return summary(models.length === 2 ? await twoModels(state, chosen, words, signal) : await withFirst(state, chosen, models[0] ?? null, words, ready.min_relevance, signal, early));
}

function summary(found) {
  const first = found.answers[0];
  const sum = (name) => found.answers.reduce((all, { ms }) => all + (ms[name] ?? 0), 0);
  return {
    ...found,
    query: first.query,
    meant: first.did_you_mean,
    nothing: first.nothing,
    split: found.answers.some((answer) => answer.query_split_words.length > 0),
    ms: { first: first.ms[FIRST], rerank: sum("rerank"), total: Math.max(...found.answers.map(({ ms }) => ms.total)) },
  };
}
