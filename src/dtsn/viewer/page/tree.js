// The tree panel: depth runs to the right, every leaf of the finished tree has a row of its own.
// Where there are many actions, only the best leaves below a node are drawn, and a row that counts the others.

import { colour, number, svg } from "./draw.js";

const LEFT = 22, TOP = 14, LABEL = 52;
const FEW = 6, BEST = 3; // up to so many actions all leaves are drawn, beyond that so many below a node
const ROOM = 11; // between two rows, for a label on every node
export const FIT = 0; // a zoom at which all of the tree is seen

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

// A zoom does not scale the picture: it gives rows more room, so that labels appear where there is enough.
function layout(model, width, height, zoom) {
  const { children, more } = pick(model);
  const drawn = [0, ...children.flat()].sort((a, b) => a - b), counts = [];
  const leaves = drawn.filter((id) => !children[id].length).length + more.filter(Boolean).length;
  const depth = Math.max(1, ...model.nodes.map((node) => node.depth));
  const names = model.nodes.some((node) => node.label !== null);
  const label = names ? 150 : LABEL;
  const fitting = { gap: (height - 2 * TOP) / leaves, column: (width - LEFT - label) / depth };
  const gap = Math.min(34, zoom === FIT ? fitting.gap : zoom * Math.max(4, fitting.gap));
  const wide = model.short ? 38 : 84;
  const column = Math.min(names ? 190 : 120, zoom === FIT ? Math.max(4, fitting.column) : Math.max(wide * Math.min(zoom, 2), fitting.column));
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
  return {
    drawn: drawn.map((id) => model.nodes[id]), counts, places, gap, column,
    width: LEFT + column * depth + label, height: 2 * TOP + gap * leaves, largest: Math.max(1, ROOM / Math.max(4, fitting.gap)),
  };
}

function shape(node, x, y, radius) {
  if (node.terminal <= 0.5) return svg("circle", { cx: x, cy: y, r: radius, class: "disc" });
  return svg("rect", { x: x - radius, y: y - radius, width: 2 * radius, height: 2 * radius, class: "disc" });
}

// Draws into `box`; `show(t, ids)` moves to an iteration and marks nodes. `largest` is a zoom at which all can be read.
export function makeTree(box, model, zoom) {
  const { drawn, counts, places, gap, column, width, height, largest } = layout(model, box.clientWidth - 4, box.clientHeight - 4, zoom);
  const roomy = gap >= ROOM && column >= 30;
  const small = Math.min(5, Math.max(1.2, 0.4 * gap)), large = Math.min(9, Math.max(2.5, 1.8 * gap), Math.max(2.5, column / 3)); // radii
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
      if (column >= 30 && gap >= 3 && (roomy || node.expanded_at !== null)) {
        const away = node.expanded_at === null ? 14 : 19;
        group.append(svg("text", { x: x - away, y, class: model.short ? "action" : "action long" }, model.labels[node.action]));
      }
    }
    const ring = svg("circle", { cx: x, cy: y, class: "ring" });
    const disc = shape(node, x, y, small);
    group.append(ring, disc);
    colour(group, model.share(node.path_value));
    if (node.expanded_at !== null && large >= 7) {
      const order = String(node.expanded_at), size = Math.min(10, (order.length > 2 ? 0.94 : 1.25) * large); // fits the disc
      group.append(svg("text", { x, y, class: `order digits-${order.length}`, "font-size": size }, order));
    }
    if (model.blockedIds.has(node.id) && roomy) {
      const arm = 0.6 * small;
      group.append(svg("path", { d: `M${x - arm} ${y - arm}l${2 * arm} ${2 * arm}m0 ${-2 * arm}l${-2 * arm} ${2 * arm}`, class: "cross" }));
    }
    if (roomy && (node.path_value !== null || node.label !== null)) {
      const words = [node.label, node.path_value === null ? null : number(node.path_value)].filter((word) => word !== null);
      group.append(svg("text", { x: x + (node.label === null ? 10 : 12), y, class: node.label === null ? "value" : "value named" }, words.join("  ")));
    }
    groups[node.id] = { group, ring, disc };
    marks.append(group);
  }
  const rests = counts.map(({ id, more, x, y }) => {
    const text = svg("text", { x: x - 6, y, class: "rest" }, `+${more}`);
    if (gap >= 8) marks.append(text);
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
      if (node.terminal > 0.5) words.push("terminal");
      if (node.same_as !== null) words.push("alias");
      const { group, ring, disc } = groups[node.id], radius = state === "expanded" ? large : small;
      for (const kept of ["plain", "high"]) if (group.classList.contains(kept)) words.push(kept);
      group.setAttribute("class", words.join(" "));
      disc.setAttribute("r", radius);
      ring.setAttribute("r", radius + 3.5);
      edges[node.id]?.setAttribute("class", `${state} ${best.has(node.id) ? "best" : ""}`);
    }
    return places[current];
  }
  return { show, largest };
}
