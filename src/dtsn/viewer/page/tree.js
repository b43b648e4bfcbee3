// The tree panel: depth runs to the right, every leaf of the finished tree has a row of its own.
// Where there are many actions, only the best leaves below a node are drawn, and a row that counts the others.

import { colour, number, svg } from "./draw.js";

const LEFT = 22, TOP = 14, LABEL = 52;
const FEW = 6, BEST = 3; // up to so many actions all leaves are drawn, beyond that so many below a node

// The children of every node that are drawn, and how many more there are.
function pick(model) {
  const children = model.nodes.map(() => []), more = model.nodes.map(() => 0);
  for (const node of model.nodes.slice(1)) children[node.parent].push(node.id);
  if (model.actions.length <= FEW) return { children, more };
  children.forEach((own, id) => {
    const open = own.filter((child) => model.nodes[child].expanded_at === null);
    const best = open.sort((a, b) => model.nodes[b].path_value - model.nodes[a].path_value).slice(0, BEST);
    children[id] = own.filter((child) => model.nodes[child].expanded_at !== null || best.includes(child));
    more[id] = own.length - children[id].length;
  });
  return { children, more };
}

function layout(model, width, height) {
  const { children, more } = pick(model);
  const drawn = [0, ...children.flat()].sort((a, b) => a - b), counts = [];
  const leaves = drawn.filter((id) => !children[id].length).length + more.filter(Boolean).length;
  const depth = Math.max(...model.nodes.map((node) => node.depth));
  const gap = Math.min(34, Math.max(4, (height - 2 * TOP) / leaves));
  const column = Math.min(120, Math.max(38, (width - LEFT - LABEL) / Math.max(1, depth)));
  const places = [];
  let row = 0;
  // Children have larger ids than their parents; rows are given in the order of a walk through the tree.
  (function walk(id) {
    for (const child of children[id]) walk(child);
    const ys = children[id].map((child) => places[child].y);
    if (more[id]) {
      counts.push({ id, more: more[id], x: LEFT + column * (model.nodes[id].depth + 1), y: TOP + gap * (row++ + 0.5) });
    }
    const y = ys.length ? (ys[0] + ys.at(-1)) / 2 : TOP + gap * (row++ + 0.5);
    places[id] = { x: LEFT + column * model.nodes[id].depth, y };
  })(0);
  return { drawn: drawn.map((id) => model.nodes[id]), counts, places, gap, width: LEFT + column * depth + LABEL, height: 2 * TOP + gap * leaves };
}

// Draws into `box`; `show(t, ids)` moves to an iteration and marks nodes.
export function makeTree(box, model) {
  const { drawn, counts, places, gap, width, height } = layout(model, box.clientWidth - 4, box.clientHeight - 4);
  const roomy = gap >= 11; // for a label on every node
  const small = Math.min(5, Math.max(1.7, 0.4 * gap)), large = Math.min(9, Math.max(4, 1.8 * gap)); // radii
  const edges = [], groups = [];
  const lines = svg("g", { class: "edges" }), marks = svg("g");
  for (const node of drawn) {
    const { x, y } = places[node.id];
    const group = svg("g", { "data-id": node.id, class: "node" });
    if (node.parent !== null) {
      const from = places[node.parent], middle = (from.x + x) / 2;
      const edge = svg("path", { d: `M${from.x} ${from.y}C${middle} ${from.y} ${middle} ${y} ${x} ${y}` });
      edges[node.id] = edge;
      lines.append(edge);
      if (roomy || node.expanded_at !== null) {
        group.append(svg("text", { x: x - (node.expanded_at === null ? 14 : 19), y, class: "action" }, model.labels[node.action]));
      }
    }
    const ring = svg("circle", { cx: x, cy: y, class: "ring" }), disc = svg("circle", { cx: x, cy: y, class: "disc" });
    group.append(ring, disc);
    colour(group, model.share(node.path_value));
    if (node.expanded_at !== null && large >= 7) {
      group.append(svg("text", { x, y, class: "order" }, String(node.expanded_at)));
    }
    if (model.blockedIds.has(node.id) && roomy) {
      const arm = 0.6 * small;
      group.append(svg("path", { d: `M${x - arm} ${y - arm}l${2 * arm} ${2 * arm}m0 ${-2 * arm}l${-2 * arm} ${2 * arm}`, class: "cross" }));
    }
    if (node.path_value !== null && roomy) {
      group.append(svg("text", { x: x + 10, y, class: "value" }, number(node.path_value)));
    }
    groups[node.id] = { group, ring, disc };
    marks.append(group);
  }
  const rests = counts.map(({ id, more, x, y }) => {
    const text = svg("text", { x: x - 6, y, class: "rest" }, `+${more}`);
    marks.append(text);
    return { text, node: model.nodes[id] };
  });
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, lines, marks);
  box.replaceChildren(picture);

  function show(t, ids) {
    const best = new Set(model.bestPath(t));
    const current = model.iterations[t - 1].expanded;
    for (const { text, node } of rests) text.classList.toggle("future", model.stateOf(node, t) !== "expanded");
    for (const node of drawn) {
      const state = model.stateOf(node, t);
      const words = ["node", state];
      if (node.id === current) words.push("current");
      if (best.has(node.id)) words.push("best");
      if (ids.has(node.id)) words.push("marked");
      if (model.blockedIds.has(node.id)) words.push("blocked");
      const { group, ring, disc } = groups[node.id], radius = state === "expanded" ? large : small;
      for (const kept of ["plain", "high"]) if (group.classList.contains(kept)) words.push(kept);
      group.setAttribute("class", words.join(" "));
      disc.setAttribute("r", radius);
      ring.setAttribute("r", radius + 3.5);
      edges[node.id]?.setAttribute("class", `${state} ${best.has(node.id) ? "best" : ""}`);
    }
    return places[current];
  }
  return { show };
}
