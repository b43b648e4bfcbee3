// The page's state, its controls and its questions to the server. All that decides what is shown is in the
// address after the #, so that a view can be kept, shared and reloaded.

import { html } from "./draw.js";
import { openFile } from "./files.js";
import { Pane } from "./pane.js";

const FIXED = {
  run: "shipped/navigation-dtsn", step: "", vs: "", vs_step: "", level: "0", iterations: "", rule: "", temperature: "", seed: "0",
  a: "", b: "", // the actions so far of the first solver and of the second
  t: "", // the iteration that is shown; empty for the last
  truth: "", // whether true values are shown
};
const FIELDS = ["run", "step", "vs", "vs_step", "level", "iterations", "rule", "temperature", "seed"];
const VIEW = ["t", "truth"]; // changes that need no search
const SAVED = "file"; // the world of saved searches
const ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
const PAUSE = 420; // milliseconds between two steps while playing
const KEPT = 80; // replies

const $ = (id) => document.getElementById(id);
let state = { ...FIXED };
let runs = [], solvers = {}, worlds = {};
let playing = null, looking = null;
const replies = new Map(); // by question
const opened = new Map(); // replies to saved searches that were opened here, by name

const known = (name) => runs.find((run) => run.name === name);
const usable = () => runs.filter((run) => !run.problem);
const runOf = (side) => known(side === "a" ? state.run : state.vs);
const worldName = (name) => known(name)?.environment;
const world = () => worlds[worldName(state.run)] ?? { actions: [], fields: [], level: 0 };
const fits = (run, other) => run.environment === other?.environment && run.size === other?.size && !run.problem;
const mixed = () => Boolean(state.vs) && !(known(state.vs) && fits(known(state.vs), known(state.run)));

// --- the panes' view of the page -----------------------------------------------------------------------

const page = {
  get state() { return state; },
  run: runOf,
  title(run, search) {
    const solver = solvers[search?.solver.name ?? run?.solver];
    return { title: solver?.title ?? search?.solver.name ?? "", colour: solver?.colour ?? "gray" };
  },
  name: (side) => `${runOf(side)?.solver ?? "search"}-level-${state.level}-step-${decode(state[side]).length}`,
  canStep: (side) => worldName(side === "a" ? state.run : state.vs) !== SAVED,
  question(side) {
    const run = runOf(side), step = state[side === "a" ? "step" : "vs_step"];
    return {
      run: run?.name ?? state[side === "a" ? "run" : "vs"], step: step === "" ? null : Number(step),
      level: Number(state.level), options: Object.fromEntries(world().fields.map(({ name }) => [name, state[name]])),
      actions: decode(state[side]), seed: Number(state.seed),
      iterations: state.iterations === "" ? null : Number(state.iterations),
      rule: state.rule || null,
      temperature: state.temperature === "" ? null : Number(state.temperature),
    };
  },
  async ask(body) {
    const name = JSON.parse(body).run;
    if (opened.has(name)) return opened.get(name);
    if (!replies.has(body)) {
      replies.set(body, await post("api/search", body));
      if (replies.size > KEPT) replies.delete(replies.keys().next().value);
    }
    return replies.get(body);
  },
  take: (side, action) => step({ [side]: action }),
  scrub: (t) => change({ t: String(t) }),
};

async function post(address, body) {
  const response = await fetch(address, { method: "POST", headers: { "Content-Type": "application/json" }, body });
  const reply = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(reply.error);
  return reply;
}

const panes = { a: new Pane("a", page), b: new Pane("b", page) };
const shown = () => (state.vs ? [panes.a, panes.b] : [panes.a]);

// --- state ---------------------------------------------------------------------------------------------

// Actions are a character each: their names where those are single letters. Many actions are numbers with dots.
const letters = () => (world().actions.every((name) => /^[A-Z]$/.test(name)) ? world().actions : [...ALPHABET]);
const isLong = () => world().actions.length > ALPHABET.length;
const encode = (actions) => (isLong() ? actions.map((a) => `${a}.`).join("") : actions.map((a) => letters()[a]).join(""));
function decode(text) {
  const codes = isLong() ? text.split(".").slice(0, -1).map(Number) : [...text].map((letter) => letters().indexOf(letter));
  return codes.filter((action) => action >= 0 && action < world().actions.length);
}

// What is chosen for a run if nothing else is said.
function defaults(run) {
  const entry = known(run) ?? {};
  return { ...FIXED, run, level: String(worlds[entry.environment]?.level ?? 0), ...entry.options };
}

const firstRun = () => (known(FIXED.run) ?? usable()[0])?.name ?? FIXED.run;

function readAddress() {
  const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  state = defaults(given.run ?? usable().find((run) => run.environment === SAVED)?.name ?? firstRun());
  for (const name of Object.keys(state)) if (name in given) state[name] = given[name];
  for (const side of ["a", "b"]) state[side] = encode(decode(state[side]));
}

function writeAddress() {
  const usual = { ...defaults(state.run), run: firstRun() };
  const changed = Object.entries(state).filter(([name, value]) => value !== usual[name]);
  const text = new URLSearchParams(changed).toString();
  history.replaceState(null, "", text ? `#${text}` : location.pathname);
}

// Every change goes through here. Another level or world starts afresh; another iteration needs no search.
async function change(values) {
  const again = Object.keys(values).some((name) => !VIEW.includes(name));
  if ("run" in values && values.run !== state.run) values = { ...onlyFor(values.run), ...values };
  if ("vs" in values && values.vs !== state.vs) values = { vs_step: "", ...values };
  const fields = world().fields;
  for (const { name, choices, by } of fields) {
    const allowed = by && choices[values[by] ?? state[by]];
    if (allowed && !allowed.includes(values[name] ?? state[name])) values = { ...values, [name]: allowed[0] };
  }
  if (["level", ...fields.map(({ name }) => name)].some((name) => name in values && values[name] !== state[name])) {
    values = { a: "", b: "", ...values };
  }
  if (again) values = { t: "", ...values };
  Object.assign(state, values);
  writeAddress();
  await render(again);
}

// Another run of the same world keeps the position; one of another world begins with what it was trained on.
function onlyFor(name) {
  if (known(name) && fits(known(name), known(state.run))) return { step: "" };
  const { iterations, rule, temperature, seed } = state;
  state = { ...defaults(name), iterations, rule, temperature, seed };
  return {};
}

async function render(again) {
  if (again) listChoices();
  for (const name of FIELDS) $(name).value = state[name];
  for (const { name } of world().fields) $(name).value = state[name];
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

const time = () => Math.max(...shown().map((pane) => decode(state[pane.side]).length));

function showTransport() {
  const steps = Math.max(1, ...shown().map((pane) => pane.steps));
  const t = Math.min(Number(state.t) || steps, steps);
  const saved = worldName(state.run) === SAVED;
  const over = mixed() || saved || shown().every((pane) => pane.ended);
  $("iteration").max = steps;
  $("iteration").value = t;
  $("iteration").disabled = steps === 1;
  $("iteration-text").textContent = `iteration ${t} / ${steps}`;
  $("earlier").disabled = t <= 1;
  $("later").disabled = t >= steps;
  $("clock").textContent = saved ? "saved" : `step ${time()}`;
  $("back").disabled = $("restart").disabled = time() === 0;
  $("forth").disabled = $("play").disabled = over;
  $("play").textContent = playing ? "❚❚" : "▶\uFE0E";
  $("play").setAttribute("aria-label", playing ? "Pause" : "Play");
  const solver = shown().map((pane) => pane.part("title").textContent).join(" and ");
  $("summary").textContent = [solver, saved ? state.run : `level ${state.level}`, ...world().fields.map(({ name }) => `${name} ${state[name]}`)].join(", ");
  const searching = shown().map((pane) => runOf(pane.side)).filter(Boolean);
  const trained = searching.find((run) => run.planner === "best_first");
  for (const name of ["iterations", "rule", "temperature"]) $(name).disabled = searching.length > 0 && !trained;
  for (const name of ["iterations", "temperature"]) $(name).placeholder = trained?.[name] ?? "";
  $("rule").options[0].text = trained?.rule ? `(${trained.rule.replace("_", " ")})` : "as trained";
}

// --- choices -------------------------------------------------------------------------------------------

const options = (names) => [...new Set(names)].map((name) => new Option(name, name));

function listChoices() {
  const words = (run) => {
    const title = solvers[run.solver]?.title ?? run.solver;
    return run.name.startsWith("shipped/") ? `${title} (shipped)` : run.name;
  };
  const option = (run) => {
    const made = new Option(run.problem ? `${run.name}: ${run.problem}`.slice(0, 120) : words(run), run.name);
    made.disabled = Boolean(run.problem);
    made.title = run.problem ?? "";
    return made;
  };
  // A run that is not listed (the address names it) stays chosen; the server says what is wrong with it.
  const unlisted = (name) => (name && !known(name) ? options([name]) : []);
  const chosen = known(state.run), beside = runs.filter((run) => !chosen || fits(run, chosen) || run.name === state.vs);
  $("run").replaceChildren(...runs.map(option), ...unlisted(state.run));
  $("vs").replaceChildren(new Option("nothing", ""), ...beside.map(option), ...unlisted(state.vs));
  for (const [id, run] of [["step", chosen], ["vs_step", known(state.vs)]]) {
    $(id).replaceChildren(new Option("newest", ""), ...options([...(run?.steps ?? [])].reverse().map(String)));
    $(id).parentElement.hidden = (run?.steps ?? []).length < 2;
  }
  $("differ").hidden = !state.vs || worldName(state.run) === SAVED;
  $("differ").title = `Next level where the two solvers disagree (N): ${world().differ}`;
  $("level-fields").hidden = $("search-fields").hidden = worldName(state.run) === SAVED;
  listFields();
}

// The settings of the world. A value that is not among the choices (the address names it) is shown, too.
function listFields() {
  const made = world().fields.map(({ name, choices, by }) => {
    const select = html("select", { id: name });
    const allowed = by ? (choices[state[by]] ?? []) : choices;
    select.replaceChildren(...options([...allowed, state[name]]));
    select.addEventListener("change", () => { stop(); change({ [name]: select.value }); });
    return html("label", { class: "world" }, name, select);
  });
  for (const label of document.querySelectorAll("label.world")) label.remove();
  $("level-fields").append(...made);
}

// --- the agent -----------------------------------------------------------------------------------------

// Every solver that is still under way takes its best action, or the one given for its side.
async function step(given = null) {
  if (mixed() || worldName(state.run) === SAVED || !shown().every((pane) => pane.ready)) return; // no best action is known yet
  const values = {};
  for (const pane of shown()) {
    const action = given ? given[pane.side] : pane.model?.action;
    if (action !== undefined && pane.model && !pane.ended) values[pane.side] = state[pane.side] + encode([action]);
  }
  if (Object.keys(values).length) await change(values);
}

function back(all = false) {
  stop();
  const end = all ? 0 : Math.max(0, time() - 1);
  const cut = (side) => encode(decode(state[side]).slice(0, end));
  return change({ a: cut("a"), b: cut("b") });
}

async function play() {
  if (playing) return stop();
  if ($("play").disabled) return;
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
  looking = null;
  $("differ").classList.remove("busy");
  showTransport();
}

// The next level where the two solvers disagree: the server looks at a few levels at a time.
async function nextDifference() {
  if ($("differ").hidden || mixed()) return;
  if (looking) return stop();
  stop();
  const mine = (looking = {});
  $("differ").classList.add("busy");
  const [first, second] = ["a", "b"].map((side) => ({ ...page.question(side), actions: [] }));
  try {
    while (looking === mine) {
      const { level, last } = await post("api/disagree", JSON.stringify({ first, second }));
      if (looking !== mine) return;
      $("level").value = level ?? last;
      if (level !== null) { stop(); return await change({ level: String(level) }); }
      first.level = last;
    }
  } catch (error) {
    stop();
    fail(error.message);
  }
}

// --- controls ------------------------------------------------------------------------------------------

function scrub(t) {
  const steps = Math.max(1, ...shown().map((pane) => pane.steps));
  return change({ t: String(Math.min(steps, Math.max(1, t))) });
}

const iteration = () => Number($("iteration").value);
const moveLevel = (by) => { stop(); return change({ level: String(Math.max(0, Number(state.level) + by)) }); };

// The second solver begins where the first is.
function compare() {
  if (state.vs) return change({ vs: "", b: "" });
  const others = usable().filter((run) => run.name !== state.run && fits(run, known(state.run)));
  const other = others.find((run) => run.solver !== known(state.run)?.solver) ?? others[0];
  return other && change({ vs: other.name, b: state.a });
}

async function open(file) {
  if (!file) return;
  try {
    const reply = await openFile(file);
    const name = `${SAVED}/${file.name}`, { solver } = reply.search;
    opened.set(name, reply);
    runs = [...runs.filter((run) => run.name !== name), { name, solver: solver.name, planner: solver.planner, environment: SAVED, size: null, options: {}, steps: [] }];
    panes.a.answered = null; // a file of the same name may say something else now
    state = defaults(name);
    writeAddress();
    await render(true);
  } catch (error) {
    fail(error.message);
  }
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

const zoom = (by) => { for (const pane of shown()) pane.resize(by); };

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
  n: () => nextDifference(),
  x: () => "exits" in state && change({ exits: state.exits === "1" ? "2" : "1" }),
  v: () => change({ truth: state.truth ? "" : "1" }),
  c: () => compare(),
  o: () => $("file").click(),
  d: () => toggleTheme(),
  "+": () => zoom(1),
  "=": () => zoom(1),
  "-": () => zoom(-1),
  0: () => zoom(0),
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

function listen() {
  for (const name of FIELDS) {
    $(name).addEventListener("change", () => {
      if (!$(name).checkValidity()) return fail(`${name}: ${$(name).validationMessage}`);
      stop();
      change({ [name]: $(name).value, ...(name === "vs" && { b: $(name).value && state.a }) });
    });
  }
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("iteration").addEventListener("input", () => scrub(iteration()));
  const clicks = {
    restart: () => back(true), back: () => back(), play, forth: () => { stop(); step(); },
    earlier: () => scrub(iteration() - 1), later: () => scrub(iteration() + 1),
    "previous-level": () => moveLevel(-1), "next-level": () => moveLevel(1), differ: nextDifference,
    open: () => $("file").click(), theme: toggleTheme, "help-button": toggleHelp,
  };
  for (const [id, action] of Object.entries(clicks)) $(id).addEventListener("click", () => action());
  $("file").addEventListener("change", () => { open($("file").files[0]); $("file").value = ""; });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => { event.preventDefault(); open(event.dataTransfer.files[0]); });
  addEventListener("keydown", onKey);
  addEventListener("hashchange", () => { stop(); readAddress(); render(true); });
}

async function start() {
  if (matchMedia("(max-width: 720px)").matches) $("settings").open = false;
  listen();
  try {
    const listed = await (await fetch("api/runs")).json();
    ({ runs, solvers, worlds } = listed);
    $("iterations").max = listed.max_iterations;
  } catch {
    fail("The server does not answer: start dtsn view again.");
    return;
  }
  readAddress();
  await render(true);
}

const kept = localStorage.getItem("theme");
if (kept) document.documentElement.dataset.theme = kept;
start();
