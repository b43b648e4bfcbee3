// The scene panel: a hall with the way driven so far and where the nodes of the search would be, a picture, or
// text. The page knows it only by `makeScene(box, scene, model, outcome) -> { show(t, ids, truth) }` and by
// elements with `data-ids`.

import { colour, html, number, svg } from "./draw.js";

const MOVES = { E: [0, 1], S: [1, 0], W: [0, -1], N: [-1, 0] };
const centre = ([row, column]) => `${column + 0.5} ${row + 0.5}`;
const line = (cells) => "M" + cells.map(centre).join("L");

function background(scene) {
  const rows = scene.walls.length, columns = scene.walls[0].length;
  const grid = [];
  for (let i = 1; i < rows; i++) grid.push(`M0 ${i}H${columns}`);
  for (let i = 1; i < columns; i++) grid.push(`M${i} 0V${rows}`);
  const walls = [];
  scene.walls.forEach((row, y) => row.forEach((wall, x) => wall && walls.push(`M${x} ${y}h1v1h-1z`)));
  return [
    svg("rect", { width: columns, height: rows, class: "floor" }),
    svg("path", { d: grid.join(""), class: "grid" }),
    svg("path", { d: walls.join(""), class: "wall" }),
  ];
}

// The true value of every cell, by value iteration.
function trueValues(grid) {
  const group = svg("g", { class: "truth" });
  grid?.true_values.forEach((row, y) => row.forEach((value, x) => {
    if (value !== null) group.append(svg("text", { x: x + 0.5, y: y + 0.5 }, number(value, 0)));
  }));
  return group;
}

// The cells that the search has reached, each with its nodes.
function cellsOf(model) {
  const cells = new Map();
  for (const node of model?.nodes ?? []) {
    const cell = model.grid.cells[node.id], key = cell.join();
    if (!cells.has(key)) cells.set(key, { cell, ids: [] });
    cells.get(key).ids.push(node.id);
  }
  return [...cells.values()];
}

function makeHall(box, scene, model, outcome) {
  const rows = scene.walls.length, columns = scene.walls[0].length;
  const robot = scene.robot, [goalRow, goalColumn] = scene.goal;
  const imagined = svg("g"), bumps = svg("g"), best = svg("path", { class: "best-path" });
  const truth = trueValues(model?.grid);
  const places = cellsOf(model).map(({ cell, ids }) => {
    const [row, column] = cell;
    const group = svg("g", { "data-ids": ids.join(" "), class: "place" });
    group.append(
      svg("rect", { x: column, y: row, width: 1, height: 1, class: "target" }),
      svg("circle", { cx: column + 0.5, cy: row + 0.5, r: 0.42, class: "ring" }),
      svg("circle", { cx: column + 0.5, cy: row + 0.5, r: 0.22, class: "disc" }),
    );
    imagined.append(group);
    return { group, ids };
  });
  const stubs = (model?.nodes ?? []).filter(
    (node) => model.blockedIds.has(node.id) && !model.blockedIds.has(node.parent),
  ).map((node) => {
    const [dy, dx] = MOVES[model.actions[node.action]], [row, column] = model.grid.cells[node.id];
    const x = column + 0.5 + 0.44 * dx, y = row + 0.5 + 0.44 * dy;
    const bump = svg("path", { d: `M${x - 0.24 * dy} ${y - 0.24 * dx}L${x + 0.24 * dy} ${y + 0.24 * dx}`, class: "bump" });
    bumps.append(bump);
    return { bump, node };
  });
  const crash = outcome === "collision" ? [svg("path", { d: `M${robot[1] + 0.1} ${robot[0] + 0.1}l.8 .8m0-.8l-.8 .8`, class: "crash" })] : [];
  const picture = svg(
    "svg",
    { viewBox: `-0.05 -0.05 ${columns + 0.1} ${rows + 0.1}`, role: "img", "aria-label": "The hall" },
    ...background(scene), truth,
    svg("path", { d: line(scene.path), class: "driven" }),
    imagined, bumps, best,
    svg("rect", { x: goalColumn + 0.14, y: goalRow + 0.14, width: 0.72, height: 0.72, rx: 0.12, class: "goal" }),
    svg("circle", { cx: robot[1] + 0.5, cy: robot[0] + 0.5, r: outcome === "goal" ? 0.22 : 0.38, class: "robot" }),
    ...crash,
  );
  box.replaceChildren(picture);

  function show(t, ids, withTruth) {
    truth.style.display = withTruth ? "" : "none";
    if (!model) return;
    const current = model.iterations[t - 1].expanded;
    for (const { group, ids: own } of places) {
      const states = own.map((id) => model.stateOf(model.nodes[id], t));
      const seen = own.filter((_, i) => states[i] !== "future");
      const shares = seen.map((id) => model.share(model.nodes[id].path_value)).filter((share) => share !== null);
      const words = ["place"];
      if (!seen.length) words.push("future");
      else words.push(states.includes("expanded") ? "expanded" : "open");
      if (own.includes(current)) words.push("current");
      if (own.some((id) => ids.has(id))) words.push("marked");
      group.setAttribute("class", words.join(" "));
      colour(group, shares.length ? Math.max(...shares) : null);
    }
    for (const { bump, node } of stubs) bump.classList.toggle("future", model.stateOf(node, t) === "future");
    best.setAttribute("d", line(model.bestPath(t).map((id) => model.grid.cells[id])));
  }
  return { show };
}

export function makeScene(box, scene, model, outcome) {
  box.hidden = !scene;
  if (scene?.kind === "grid") return makeHall(box, scene, model, outcome);
  if (scene?.kind === "picture") box.replaceChildren(html("img", { src: scene.data, class: "frame", alt: "The state" }));
  else if (scene) box.replaceChildren(html("pre", { class: "words" }, scene.text));
  return { show() {} };
}
