// What the drawings share: SVG elements, the numbers of a document, and a tree at one iteration.

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function html(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Navigation's directions and Procgen's keys, of which E, S and W mean something else.
const DIRECTIONS = { E: "→", S: "↓", W: "←", N: "↑" };
const KEYS = {
  "LEFT+DOWN": "↙", LEFT: "←", "LEFT+UP": "↖", DOWN: "↓", NOOP: "·", UP: "↑", "RIGHT+DOWN": "↘", RIGHT: "→", "RIGHT+UP": "↗",
};
export const number = (x, digits = 2) => (x === null ? "–" : x.toFixed(digits).replace("-", "−"));
export const percent = (p) => (p >= 0.995 || p === 0 ? (100 * p).toFixed(0) : (100 * p).toPrecision(2)) + " %";

// A search document with what every drawing asks of it.
export function makeModel(search) {
  const { nodes, actions } = search;
  const grid = search.scene?.kind === "grid" ? search.scene : null;
  const arrows = grid ? DIRECTIONS : KEYS;
  const labels = actions.map((name) => arrows[name] ?? name);
  const short = labels.every((name) => [...name].length === 1);
  const created = nodes.map((node) => (node.parent === null ? 0 : nodes[node.parent].expanded_at));
  const known = nodes.map((node) => node.path_value).filter((value) => value !== null);
  const { low, high } = extent(known);
  const paths = nodes.map(() => "");
  for (const node of nodes.slice(1)) {
    paths[node.id] = paths[node.parent] + (short || !paths[node.parent] ? "" : " ") + labels[node.action];
  }
  const blocked = new Set(grid?.blocked ?? []);

  // The best path of the tree after t iterations: the backup is a maximum over evaluated leaves.
  function bestPath(t) {
    if (t === search.iterations.length) return search.best_path;
    const open = nodes.filter((node) => stateOf(node, t) === "open" && node.path_value !== null);
    const leaves = open.some((node) => node.same_as === null) ? open.filter((node) => node.same_as === null) : open;
    if (!leaves.length) return [0];
    const path = [leaves.reduce((best, node) => (node.path_value > best.path_value ? node : best)).id];
    while (path[0] !== 0) path.unshift(nodes[path[0]].parent);
    return path;
  }

  function stateOf(node, t) {
    if (created[node.id] > t) return "future";
    return node.expanded_at !== null && node.expanded_at <= t ? "expanded" : "open";
  }

  // How good a path value is, from 0 to 1 within its tree; null where the node has none.
  const share = (value) => (value === null ? null : high > low ? Math.max(0, value - low) / (high - low) : 1);

  return { ...search, grid, labels, short, low, high, paths, blockedIds: blocked, bestPath, stateOf, share };
}

// Path values become colours in the style sheet, so that a change of theme needs no drawing.
export function colour(element, share) {
  element.classList.toggle("plain", share === null);
  if (share === null) return;
  element.style.setProperty("--v", `${Math.round(100 * share)}%`);
  element.classList.toggle("high", share > 0.55);
}

export function nodeText(model, id) {
  const node = model.nodes[id], cell = model.grid?.cells[id];
  const words = [node.id ? `node ${id}` : "root", node.label, model.paths[id], `depth ${node.depth}`];
  if (node.id) words.push(`reward ${number(node.reward)}`);
  if (node.value !== null) words.push(`value ${number(node.value)}`);
  if (node.path_value !== null) words.push(`path value ${number(node.path_value)}`);
  words.push(node.expanded_at === null ? "not expanded" : `expanded at ${node.expanded_at}`);
  if (node.terminal > 0.005) words.push(node.terminal === 1 ? "ends the episode" : `ends with probability ${percent(node.terminal)}`);
  if (node.same_as !== null) words.push(`same place as ${node.same_as ? `node ${node.same_as}` : "the root"}`);
  if (cell) words.push(`cell (${cell.join(", ")}), true value ${number(model.grid.true_values[cell[0]][cell[1]], 0)}`);
  if (model.blockedIds.has(id)) words.push("runs into a wall");
  return words.filter(Boolean).join(" · ");
}

// The range that is drawn: what is far below the best is drawn at its end, lest one wall flattens all else.
export function extent(values) {
  const high = Math.max(...values);
  return { low: Math.max(Math.min(...values), high - 15), high };
}

export function planText(plan) {
  const { steps, blocked_at: wall, optimal_steps: optimal } = plan;
  if (wall !== null) return `The plan runs into a wall at its step ${wall} of ${steps}.`;
  const share = optimal === steps ? "all" : `the first ${optimal}`;
  return `The plan of ${steps} ${steps === 1 ? "step" : "steps"} can be walked: ${share} shortest.`;
}
