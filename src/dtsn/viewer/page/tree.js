// The tree panel: depth runs to the right, every leaf of the finished tree has a row of its own.

import { arrow, colour, number, svg } from "./draw.js";

const LEFT = 22, TOP = 14, LABEL = 52;

function layout(model, width, height) {
  const children = model.nodes.map(() => []);
  for (const node of model.nodes.slice(1)) children[node.parent].push(node.id);
  const leaves = children.filter((own) => !own.length).length;
  const depth = Math.max(...model.nodes.map((node) => node.depth));
  const gap = Math.min(34, Math.max(4, (height - 2 * TOP) / leaves));
  const column = Math.min(120, Math.max(38, (width - LEFT - LABEL) / Math.max(1, depth)));
  const places = [];
  let row = 0;
  // Children have larger ids than their parents; rows are given in the order of a walk through the tree.
  (function walk(id) {
    for (const child of children[id]) walk(child);
    const ys = children[id].map((child) => places[child].y);
    const y = ys.length ? (ys[0] + ys.at(-1)) / 2 : TOP + gap * (row++ + 0.5);
    places[id] = { x: LEFT + column * model.nodes[id].depth, y };
  })(0);
  return { places, gap, width: LEFT + column * depth + LABEL, height: 2 * TOP + gap * leaves };
}

// Draws into `box`; `show(t, ids)` moves to an iteration and marks nodes.
export function makeTree(box, model) {
  const { places, gap, width, height } = layout(model, box.clientWidth - 4, box.clientHeight - 4);
  const roomy = gap >= 11; // for a label on every node
  const small = Math.min(5, Math.max(1.7, 0.4 * gap)), large = Math.min(9, Math.max(4, 1.8 * gap)); // radii
  const edges = [], groups = [];
  const lines = svg("g", { class: "edges" }), marks = svg("g");
  for (const node of model.nodes) {
    const { x, y } = places[node.id];
    const group = svg("g", { "data-id": node.id, class: "node" });
    if (node.parent !== null) {
      const from = places[node.parent], middle = (from.x + x) / 2;
      const edge = svg("path", { d: `M${from.x} ${from.y}C${middle} ${from.y} ${middle} ${y} ${x} ${y}` });
      edges[node.id] = edge;
      lines.append(edge);
      if (roomy || node.expanded_at !== null) {
        group.append(svg("text", { x: x - (node.expanded_at === null ? 14 : 19), y, class: "action" }, arrow(model.actions[node.action])));
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
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, lines, marks);
  box.replaceChildren(picture);

  function show(t, ids) {
    const best = new Set(model.bestPath(t));
    const current = model.iterations[t - 1].expanded;
    for (const node of model.nodes) {
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
