// The numbers: Q-values as bars, their course over the iterations, and the open set.

import { extent, html, number, percent, svg } from "./draw.js";

const SHOWN = 8;

export function makeBars(box, model, take) {
  const seen = model.iterations.flatMap((iteration) => iteration.q).filter((q) => q !== null);
  const { low, high } = extent(seen);
  const truth = model.grid?.true_q;
  const rows = model.labels.map((name, action) => {
    const bar = html("span", { class: `bar action-${action % 8}` }), text = html("span", { class: "q" });
    const row = html("button", { type: "button", class: model.short ? "q-row" : "q-row long", title: `Take ${name} now` });
    row.append(html("span", { class: "name" }, name), html("span", { class: "track" }, bar), text);
    if (truth) row.append(html("span", { class: "true-q", title: "true value" }, truth[action] === null ? "wall" : number(truth[action], 0)));
    if (take && model.q[action] !== null) row.addEventListener("click", () => take(action));
    else row.disabled = true;
    return { row, bar, text };
  });
  box.replaceChildren(...rows.map(({ row }) => row));

  function show(t) {
    const q = model.iterations[t - 1].q;
    const top = Math.max(...q.filter((value) => value !== null));
    rows.forEach(({ row, bar, text }, action) => {
      const share = q[action] === null ? 0 : high > low ? 0.06 + (0.94 * Math.max(0, q[action] - low)) / (high - low) : 1;
      bar.style.width = `${100 * share}%`;
      text.textContent = number(q[action]);
      row.classList.toggle("best", q[action] === top);
    });
  }
  return { show };
}

// Labels at the end of lines, pushed apart where the lines end close together.
function spread(wanted, gap, low, high) {
  const order = wanted.map((y, i) => [y, i]).sort((a, b) => a[0] - b[0]);
  let last = low - gap;
  for (const entry of order) last = entry[0] = Math.max(entry[0], last + gap);
  let next = high + gap;
  for (const entry of order.reverse()) next = entry[0] = Math.min(entry[0], next - gap);
  return order.sort((a, b) => a[1] - b[1]).map(([y]) => y);
}

export function makeChart(box, model, scrub) {
  const steps = model.iterations.length;
  const usable = steps > 1 && model.iterations.some((iteration) => iteration.q.some((q) => q !== null));
  box.hidden = !usable;
  if (!usable) return { show() {} };
  const width = Math.max(160, box.clientWidth), left = 42, right = model.short ? 20 : 62, top = 10, bottom = 22;
  const height = Math.max(118, top + bottom + 11 * model.actions.length); // room for a label at every line
  const seen = model.iterations.flatMap((iteration) => iteration.q).filter((q) => q !== null);
  const { low, high } = extent(seen);
  const x = (t) => left + ((width - left - right) * (t - 1)) / (steps - 1);
  const y = (q) => top + ((height - top - bottom) * (high - Math.max(q, low))) / (high - low || 1);
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Q-values after each iteration" });
  picture.append(
    svg("path", { d: `M${left} ${y(high)}H${width - right}M${left} ${y(low)}H${width - right}`, class: "axis" }),
    svg("text", { x: left - 5, y: y(high), class: "tick end" }, number(high, 1)),
    svg("text", { x: left - 5, y: y(low), class: "tick end" }, number(low, 1)),
    svg("text", { x: x(1), y: height - 7, class: "tick" }, "1"),
    svg("text", { x: x(steps), y: height - 7, class: "tick" }, String(steps)),
    svg("text", { x: (x(1) + x(steps)) / 2, y: height - 7, class: "tick" }, "iteration"),
  );
  const cursor = svg("path", { class: "cursor" });
  picture.append(cursor);
  const valid = model.labels.map((_, action) => action).filter((action) => model.q[action] !== null);
  const ends = spread(valid.map((action) => y(model.q[action])), 11, top, height - bottom);
  valid.forEach((action, place) => {
    const name = model.labels[action];
    const points = model.iterations.filter(({ q }) => q[action] !== null);
    const d = "M" + points.map((iteration) => `${x(iteration.t)} ${y(iteration.q[action])}`).join("L");
    picture.append(svg("path", { d, class: `line action-${action % 8}` }));
    picture.append(svg("text", { x: width - right + (model.short ? 8 : 5), y: ends[place], class: `tick ${model.short ? "" : "start"} text-${action % 8}` }, name.slice(0, 9)));
  });
  const at = (event) => {
    const place = event.clientX - picture.getBoundingClientRect().left;
    const t = 1 + Math.round(((place - left) / (width - left - right)) * (steps - 1));
    scrub(Math.min(steps, Math.max(1, t)));
  };
  picture.addEventListener("pointerdown", (event) => {
    picture.setPointerCapture(event.pointerId);
    at(event);
  });
  picture.addEventListener("pointermove", (event) => event.buttons && at(event));
  box.replaceChildren(picture);
  return { show: (t) => cursor.setAttribute("d", `M${x(t)} ${top - 4}V${height - bottom + 4}`) };
}

export function showOpen(box, model, t, ids) {
  const { open, open_size: size, expanded } = model.iterations[t - 1];
  let shown = open.slice(0, SHOWN);
  if (!shown.some(({ id }) => id === expanded)) {
    const chosen = { id: expanded, probability: model.iterations[t - 1].probability };
    shown = [...open.slice(0, SHOWN - 1), chosen];
  }
  const most = Math.max(...shown.map(({ probability }) => probability));
  const rows = shown.map(({ id, probability }) => {
    const bar = html("span", { class: "bar" });
    bar.style.width = `${(100 * probability) / (most || 1)}%`;
    const words = ["open-row", id === expanded ? "chosen" : "", ids.has(id) ? "marked" : ""];
    return html(
      "button",
      { type: "button", class: words.filter(Boolean).join(" "), "data-id": id },
      html("span", { class: "name" }, model.nodes[id].label ?? (model.paths[id] || "root")),
      html("span", { class: "track" }, bar),
      html("span", { class: "p" }, percent(probability)),
      html("span", { class: "q" }, number(model.nodes[id].path_value)),
    );
  });
  const rest = 1 - shown.reduce((sum, { probability }) => sum + probability, 0);
  const more = size > shown.length ? [html("p", { class: "more" }, `and ${size - shown.length} more, ${percent(Math.max(0, rest))} together`)] : [];
  const head = html("div", { class: "open-head" }, html("span", {}, "path"), html("span", {}, ""), html("span", {}, "chance"), html("span", {}, "value"));
  box.replaceChildren(html("h3", {}, `Open set, ${size} ${size === 1 ? "node" : "nodes"}`), head, ...rows, ...more);
}
