// The state of the page is its address: what is in it can be shared, and Back undoes.

const DEFAULTS = {
  q: "", filter: "", left: "", right: "", page: 1, k: 10, depth: 100,
  doc: "", by: "", why: "", layer: "", head: "mean", rule: "", map: "cross",
};
// The depth of an address that names none.
export const setDepth = (depth) => { DEFAULTS.depth = depth ?? DEFAULTS.depth; };
const NUMBERS = ["page", "k", "depth"];
export const MOST = 1000; // as many results as the service counts through

export function read(address = location.search) {
  const found = new URLSearchParams(address);
  const state = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) if (found.has(name)) state[name] = found.get(name);
  for (const name of NUMBERS) {
    const value = Math.floor(Number(state[name]));
    state[name] = value >= 1 && value <= MOST ? value : DEFAULTS[name];
  }
  if ((state.page - 1) * state.k >= MOST) state.page = DEFAULTS.page;
  return state;
}

export function address(state) {
  const chosen = Object.entries(state).filter(([name, value]) => String(value) !== String(DEFAULTS[name]));
  const text = new URLSearchParams(chosen).toString();
  return text ? `?${text}` : "./";
}

// A comparison in the language of filters, and what holds if both of two filters do.
const WORDS = ["and", "or", "not", "in", "true", "false"];
export function comparison(name, value) {
  const plain = /^[A-Za-z_][\w.-]*$/.test(name) && !WORDS.includes(name.toLowerCase());
  const quoted = typeof value === "string" ? `'${value.replaceAll("\\", "\\\\").replaceAll("'", "''")}'` : String(value);
  return `${plain ? name : `\`${name}\``} = ${quoted}`;
}
export const both = (before, more) => (before ? `(${before}) and ${more}` : more);

// What a new search, another page or a closed panel forgets.
export const PANEL = { doc: "", by: "", why: "", layer: "", head: "mean", rule: "", map: "cross" };
