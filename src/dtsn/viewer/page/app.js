// The page's state, its controls and its questions to the server. All that decides what is shown is in the
// address after the #, so that a view can be kept, shared and reloaded.

import { makeModel, nodeText, number, percent } from "./draw.js";
import { makeScene } from "./scene.js";
import { makeTree } from "./tree.js";
import { makeBars, makeChart, showOpen } from "./values.js";

const LETTERS = { navigation: "ESWN", procgen: "0123456789abcde" }; // an action each
const NAMES = { dtsn: "D-TSN", qnet: "Q-network", treeqn: "TreeQN", search: "Model-based Search" };
const DEFAULTS = {
  run: "shipped/navigation-dtsn", vs: "", level: "2000003", exits: "1", layout: "independent", game: "", mode: "easy",
  iterations: "", rule: "", temperature: "", seed: "0",
  a: "", b: "", // the actions so far of the first solver and of the second, as letters
  t: "", // the iteration that is shown; empty for the last
};
const FIELDS = ["run", "vs", "level", "exits", "layout", "game", "mode", "iterations", "rule", "temperature", "seed"];
const PAUSE = 420; // milliseconds between two steps while playing
const KEPT = 80; // replies

const $ = (id) => document.getElementById(id);
let state = { ...DEFAULTS };
let runs = [];
let games = {}; // with their modes
let procgenLevel = "0";
let playing = null;
const replies = new Map();
const known = (name) => runs.find((run) => run.name === name);
const environmentOf = (name) => known(name)?.environment ?? "navigation";
const environment = () => environmentOf(state.run);
const mixed = () => state.vs && environmentOf(state.vs) !== environment();

// --- panes ---------------------------------------------------------------------------------------------

class Pane {
  constructor(side) {
    this.side = side; // "a" or "b": where its actions are kept in the state
    this.element = $("pane").content.firstElementChild.cloneNode(true);
    this.marked = new Set();
    this.held = null;
    this.part = (name) => this.element.querySelector(`[data-part="${name}"]`);
    this.element.addEventListener("pointerover", (event) => this.point(event, false));
    this.element.addEventListener("pointerleave", () => this.mark(this.held ?? []));
    this.element.addEventListener("click", (event) => this.point(event, true));
    this.underWay = Promise.resolve();
    this.width = 0;
    new ResizeObserver(() => {
      const width = this.element.clientWidth;
      if (width !== this.width) this.draw();
    }).observe(this.element);
  }

  get run() { return this.side === "a" ? state.run : state.vs; }
  get actions() { return [...state[this.side]].map((letter) => LETTERS[environment()].indexOf(letter)); }
  get ready() { return this.asked === this.answered; }
  get ended() {
    const { outcome = null, done, completed } = this.reply?.state ?? {};
    return done ? (completed ? "goal" : "over") : outcome;
  }
  get steps() { return this.model?.iterations.length ?? 0; }

  async load() {
    const question = {
      run: this.run, level: Number(state.level),
      ...(environment() === "procgen"
        ? { game: state.game, mode: state.mode }
        : { exits: Number(state.exits), layout: state.layout }),
      actions: this.actions, seed: Number(state.seed),
      iterations: state.iterations === "" ? null : Number(state.iterations),
      rule: state.rule || null,
      temperature: state.temperature === "" ? null : Number(state.temperature),
    };
    const body = JSON.stringify(question);
    this.asked = body;
    this.element.classList.add("busy");
    // One question at a time: when the one under way is answered, only the newest is worth asking.
    this.underWay = this.underWay.catch(() => {}).then(() => (this.asked === body ? ask(body) : null));
    try {
      const reply = await this.underWay;
      if (this.asked !== body) return;
      this.answered = body;
      this.reply = reply;
      this.model = reply.search && makeModel(reply.search);
      this.marked = new Set();
      this.held = null;
      this.draw();
    } finally {
      if (this.asked === body) this.element.classList.remove("busy");
    }
  }

  draw() {
    if (!this.reply) return;
    const run = known(this.run);
    this.width = this.element.clientWidth;
    this.element.classList.toggle("over", !this.model);
    this.part("status").textContent = this.outcome();
    this.part("status").dataset.outcome = this.ended ?? "";
    this.part("title").textContent = NAMES[run?.solver] ?? this.run;
    this.part("about").textContent = this.about(run);
    this.scene = makeScene(this.part("scene"), this.reply.state, this.model);
    if (this.model) {
      this.tree = makeTree(this.part("tree"), this.model);
      this.bars = makeBars(this.part("bars"), this.model, (action) => step({ [this.side]: action }));
      this.chart = makeChart(this.part("chart"), this.model, (t) => change({ t: String(t) }));
    }
    this.show();
  }

  about(run) {
    const origin = run?.step ? `${this.run}, step ${run.step}` : this.run;
    if (!this.model) return origin;
    const { planner, iterations, rule, temperature } = this.model.solver;
    const search = planner === "best_first"
      ? `T = ${iterations}, ${rule.replace("_", " ")}${rule === "sample" ? `, temperature ${temperature}` : ""}`
      : planner === "full" ? `full tree, ${iterations} expansions` : "one expansion";
    return `${search} · ${origin}`;
  }

  outcome() {
    const { outcome, time, optimal_steps: best, score } = this.reply.state;
    if (score !== undefined) {
      const words = { goal: "Completed after", over: "Over after" }[this.ended];
      return words ? `${words} ${time} steps; score ${number(score, 1)}.` : `Step ${time}; score ${number(score, 1)}.`;
    }
    if (outcome === "goal") return `Goal after ${time} steps; the shortest way has ${best}.`;
    if (outcome === "collision") return `Collision at step ${time}.`;
    if (outcome === "time-out") return `Out of time after ${time} steps.`;
    return `Step ${time}; the shortest way from the start has ${best}.`;
  }

  // The iteration of the state, as far as this search went.
  get t() { return Math.min(Number(state.t) || this.steps, this.steps); }

  show() {
    this.scene?.show(this.t, this.marked);
    if (!this.model) return;
    const place = this.tree.show(this.t, this.marked);
    this.bars.show(this.t);
    this.chart.show(this.t);
    showOpen(this.part("open"), this.model, this.t, this.marked);
    this.part("choice").replaceChildren(...this.choice());
    const best = this.model.bestPath(this.t).at(-1);
    const [node] = this.marked;
    this.part("detail").textContent = node === undefined ? `best: ${nodeText(this.model, best)}` : nodeText(this.model, node);
    this.part("legend").dataset.low = number(this.model.low, 1);
    this.part("legend").dataset.high = number(this.model.high, 1);
    const box = this.part("tree");
    if (box.scrollHeight > box.clientHeight) box.scrollTop = place.y - box.clientHeight / 2;
    if (box.scrollWidth > box.clientWidth) box.scrollLeft = place.x - box.clientWidth / 2;
  }

  choice() {
    const { t, expanded, probability, open_size: size } = this.model.iterations[this.t - 1];
    const node = this.model.nodes[expanded];
    const title = document.createElement("strong");
    title.textContent = `Iteration ${t} of ${this.steps}`;
    if (!expanded) return [title, " expands the root."];
    const value = node.path_value === null ? "" : `, path value ${number(node.path_value)}`;
    const chance = this.model.solver.planner === "best_first"
      ? `, chosen with probability ${percent(probability)} of ${size} open nodes.` : ".";
    return [title, ` expands ${this.model.paths[expanded]}${value}${chance}`];
  }

  point(event, hold) {
    if (!this.model || event.target.closest(".q-row")) return;
    const target = event.target.closest("[data-id], [data-ids]");
    const ids = target ? (target.dataset.id ?? target.dataset.ids).split(" ").map(Number) : [];
    const seen = ids.filter((id) => this.model.stateOf(this.model.nodes[id], this.t) !== "future");
    if (hold) this.held = seen.length && String(seen) !== String(this.held) ? seen : null;
    this.mark(seen.length ? seen : (this.held ?? []));
  }

  mark(ids) {
    if (String(ids) === String([...this.marked])) return;
    this.marked = new Set(ids);
    const box = this.part("tree"), { scrollTop, scrollLeft } = box;
    this.show();
    Object.assign(box, { scrollTop, scrollLeft }); // pointing must not move what is pointed at
  }
}

const panes = { a: new Pane("a"), b: new Pane("b") };
const shown = () => (state.vs ? [panes.a, panes.b] : [panes.a]);

async function ask(body) {
  if (!replies.has(body)) {
    const response = await fetch("api/search", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    const reply = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
    if (!response.ok) throw new Error(reply.error);
    replies.set(body, reply);
    if (replies.size > KEPT) replies.delete(replies.keys().next().value);
  }
  return replies.get(body);
}

// --- state ---------------------------------------------------------------------------------------------

function readAddress() {
  const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  state = { ...defaults(given.run ?? DEFAULTS.run) };
  for (const name of Object.keys(DEFAULTS)) if (name in given) state[name] = given[name];
  for (const side of ["a", "b"]) {
    state[side] = [...state[side]].filter((letter) => LETTERS[environment()].includes(letter)).join("");
  }
}

function defaults(run) {
  if (environmentOf(run) === "navigation") return DEFAULTS;
  return { ...DEFAULTS, level: procgenLevel, game: known(run).game, mode: known(run).mode };
}

function writeAddress() {
  const usual = { ...defaults(state.run), run: DEFAULTS.run };
  const changed = Object.entries(state).filter(([name, value]) => value !== usual[name]);
  const text = new URLSearchParams(changed).toString();
  history.replaceState(null, "", text ? `#${text}` : location.pathname);
}

// Every change goes through here. Another level, game or environment starts afresh; another iteration needs no search.
async function change(values) {
  const again = Object.keys(values).some((name) => name !== "t");
  if ("run" in values) {
    const { level, game, mode } = defaults(values.run);
    values = { game, mode, ...(environmentOf(values.run) === environment() ? {} : { level, a: "", b: "" }), ...values };
  }
  const game = values.game ?? state.game;
  if (games[game] && !games[game].includes(values.mode ?? state.mode)) values = { ...values, mode: DEFAULTS.mode };
  if (["level", "exits", "layout", "game", "mode"].some((name) => name in values && values[name] !== state[name])) {
    values = { a: "", b: "", ...values };
  }
  if (again) values = { t: "", ...values };
  Object.assign(state, values);
  writeAddress();
  await render(again);
}

async function render(again) {
  for (const label of document.querySelectorAll("[data-environment]")) label.hidden = label.dataset.environment !== environment();
  // A game or mode that does not exist (the address names it) is shown; the server says what is wrong with it.
  $("game").replaceChildren(...options([...Object.keys(games), state.game]));
  $("mode").replaceChildren(...options([...(games[state.game] ?? []), state.mode]));
  for (const name of FIELDS) $(name).value = state[name];
  $("panes").classList.toggle("two", Boolean(state.vs));
  if (shown().some((pane) => !pane.element.isConnected) || shown().length !== $("panes").children.length) {
    $("panes").replaceChildren(...shown().map((pane) => pane.element));
  }
  $("error").hidden = true;
  if (mixed()) {
    stop();
    fail(`${state.run} and ${state.vs} cannot be shown side by side: choose two solvers of one environment.`);
  } else if (again) {
    try {
      await Promise.all(shown().map((pane) => pane.load()));
    } catch (error) {
      stop();
      fail(error.message);
    }
  } else {
    for (const pane of shown()) pane.show();
  }
  showTransport();
}

function fail(message) {
  $("error").textContent = message;
  $("error").hidden = false;
}

function showTransport() {
  const steps = Math.max(1, ...shown().map((pane) => pane.steps));
  const t = Math.min(Number(state.t) || steps, steps);
  const over = mixed() || shown().every((pane) => pane.ended);
  $("iteration").max = steps;
  $("iteration").value = t;
  $("iteration").disabled = steps === 1;
  $("iteration-text").textContent = `iteration ${t} / ${steps}`;
  $("earlier").disabled = t <= 1;
  $("later").disabled = t >= steps;
  const time = Math.max(...shown().map((pane) => state[pane.side].length));
  $("clock").textContent = `step ${time}`;
  $("back").disabled = $("restart").disabled = time === 0;
  $("step").disabled = $("play").disabled = over;
  $("play").textContent = playing ? "❚❚" : "▶\uFE0E";
  $("play").setAttribute("aria-label", playing ? "Pause" : "Play");
  const solver = shown().map((pane) => pane.part("title").textContent).join(" and ");
  const where = environment() === "procgen" ? `${state.game} ${state.mode}` : `${state.exits} exit${state.exits === "1" ? "" : "s"}`;
  $("summary").textContent = `${solver}, level ${state.level}, ${where}`;
  const searching = shown().map((pane) => known(pane.run)).filter(Boolean);
  const trained = searching.find((run) => run.planner === "best_first");
  for (const name of ["iterations", "rule", "temperature"]) $(name).disabled = searching.length > 0 && !trained;
  for (const name of ["iterations", "temperature"]) $(name).placeholder = trained?.[name] ?? "";
  $("rule").options[0].text = trained ? `${trained.rule.replace("_", " ")} (trained)` : "as trained";
}

// --- the agent -----------------------------------------------------------------------------------------

// Every solver that is still under way takes its best action, or the one given for its side.
async function step(given = null) {
  if (mixed() || !shown().every((pane) => pane.ready)) return; // the best action is not known yet
  const values = {};
  for (const pane of shown()) {
    const action = given ? given[pane.side] : pane.model?.action;
    if (action !== undefined && pane.model && !pane.ended) values[pane.side] = state[pane.side] + LETTERS[environment()][action];
  }
  if (Object.keys(values).length) await change(values);
}

function back(all = false) {
  stop();
  const time = Math.max(...shown().map((pane) => state[pane.side].length));
  const end = all ? 0 : Math.max(0, time - 1);
  return change({ a: state.a.slice(0, end), b: state.b.slice(0, end) });
}

async function play() {
  if (playing) return stop();
  const mine = (playing = {});
  showTransport();
  while (playing === mine) {
    await step();
    if (mixed() || shown().every((pane) => pane.ended)) break;
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
  }
  if (playing === mine) stop();
}

function stop() {
  playing = null;
  showTransport();
}

// --- controls ------------------------------------------------------------------------------------------

function scrub(t) {
  const steps = Math.max(1, ...shown().map((pane) => pane.steps));
  return change({ t: String(Math.min(steps, Math.max(1, t))) });
}

const iteration = () => Number($("iteration").value);
const moveLevel = (by) => change({ level: String(Math.max(0, Number(state.level) + by)) });

function compare() {
  if (state.vs) return change({ vs: "" });
  const others = runs.filter((run) => run.name !== state.run && run.environment === environment());
  const other = others.find((run) => run.solver !== known(state.run)?.solver) ?? others[0];
  return other && change({ vs: other.name, a: "", b: "" });
}

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
}

function toggleHelp() {
  if ($("help").open) $("help").close();
  else $("help").showModal();
}

const KEYS = {
  ArrowRight: () => scrub(iteration() + 1),
  ArrowLeft: () => scrub(iteration() - 1),
  Home: () => scrub(1),
  End: () => scrub(Infinity),
  Enter: () => { stop(); step(); },
  b: () => back(),
  " ": () => play(),
  r: () => back(true),
  l: () => moveLevel(1),
  L: () => moveLevel(-1),
  x: () => environment() === "navigation" && change({ exits: state.exits === "1" ? "2" : "1" }),
  c: () => compare(),
  d: () => toggleTheme(),
  "?": () => toggleHelp(),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if ($("help").open && event.key !== "?") return;
  const own = event.target.closest("input, select, textarea, summary");
  const presses = event.target.closest("button") && (event.key === " " || event.key === "Enter");
  const action = KEYS[event.key];
  if (own || presses || !action) return;
  event.preventDefault();
  action();
}

const options = (names) => [...new Set(names)].map((name) => new Option(name, name));

function listRuns() {
  const option = (run) => new Option(run.name.startsWith("shipped/") ? `${NAMES[run.solver]} (shipped)` : run.name, run.name);
  // A run that is not listed (the address names it) stays chosen; the server says what is wrong with it.
  const unlisted = [state.run, state.vs].filter((name) => name && !runs.some((run) => run.name === name));
  const extra = () => unlisted.map((name) => new Option(name, name));
  $("run").replaceChildren(...runs.map(option), ...extra());
  $("vs").replaceChildren(new Option("nothing", ""), ...runs.map(option), ...extra());
}

async function start() {
  if (matchMedia("(max-width: 720px)").matches) $("settings").open = false;
  for (const name of FIELDS) {
    $(name).addEventListener("change", () => {
      if (!$(name).checkValidity()) return fail(`${name}: ${$(name).validationMessage}`);
      stop();
      change({ [name]: $(name).value, ...(name === "run" && { a: "" }), ...(name === "vs" && { b: "" }) });
    });
  }
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("iteration").addEventListener("input", () => scrub(iteration()));
  const clicks = {
    restart: () => back(true), back: () => back(), play, step: () => { stop(); step(); },
    earlier: () => scrub(iteration() - 1), later: () => scrub(iteration() + 1),
    "previous-level": () => moveLevel(-1), "next-level": () => moveLevel(1),
    theme: toggleTheme, "help-button": toggleHelp,
  };
  for (const [id, action] of Object.entries(clicks)) $(id).addEventListener("click", () => action());
  addEventListener("keydown", onKey);
  addEventListener("hashchange", () => { stop(); readAddress(); listRuns(); render(true); });
  try {
    const listed = await (await fetch("api/runs")).json();
    runs = listed.runs;
    games = listed.games;
    procgenLevel = String(listed.procgen_level);
    $("iterations").max = listed.max_iterations;
  } catch {
    fail("The server does not answer: start dtsn view again.");
  }
  readAddress();
  listRuns();
  await render(true);
}

const kept = localStorage.getItem("theme");
if (kept) document.documentElement.dataset.theme = kept;
start();
