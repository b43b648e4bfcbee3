// One solver's half of the page: its scene, its tree and its values at one decision.

import { makeModel, nodeText, number, percent, planText } from "./draw.js";
import { saveJson, savePicture } from "./files.js";
import { makeScene } from "./scene.js";
import { FIT, makeTree } from "./tree.js";
import { makeBars, makeChart, showOpen } from "./values.js";

const ZOOM = 1.6; // of one press

export class Pane {
  // `page` tells the pane what the page knows: state, run(side), question(side), ask(body), title(run), take, scrub, name(side).
  constructor(side, page) {
    this.side = side; // "a" or "b": where its actions are kept in the state
    this.page = page;
    this.element = document.getElementById("pane").content.firstElementChild.cloneNode(true);
    this.marked = new Set();
    this.held = null;
    this.zoom = 1;
    this.part = (name) => this.element.querySelector(`[data-part="${name}"]`);
    this.element.addEventListener("pointerover", (event) => this.point(event, false));
    this.element.addEventListener("pointerleave", () => this.mark(this.held ?? []));
    this.element.addEventListener("click", (event) => this.point(event, true));
    this.part("smaller").addEventListener("click", () => this.resize(-1));
    this.part("larger").addEventListener("click", () => this.resize(1));
    this.part("fit").addEventListener("click", () => this.resize(0));
    this.part("save-json").addEventListener("click", () => saveJson(this.page.name(side), this.reply.search));
    this.part("save-picture").addEventListener("click", () => savePicture(this.page.name(side), this.element));
    this.underWay = Promise.resolve();
    this.width = 0;
    new ResizeObserver(() => {
      const width = this.element.clientWidth;
      if (width !== this.width) this.draw();
    }).observe(this.element);
  }

  get ready() { return this.asked === this.answered; }
  get ended() { return this.reply?.state.outcome ?? null; }
  get steps() { return this.model?.iterations.length ?? 0; }
  // The iteration of the state, as far as this search went.
  get t() { return Math.min(Number(this.page.state.t) || this.steps, this.steps); }

  async load() {
    const body = JSON.stringify(this.page.question(this.side));
    this.asked = body;
    this.element.classList.add("busy");
    // One question at a time: when the one under way is answered, only the newest is worth asking.
    this.underWay = this.underWay.catch(() => {}).then(() => (this.asked === body ? this.page.ask(body) : null));
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
    const { state } = this.reply, run = this.page.run(this.side);
    const { title, colour } = this.page.title(run, this.reply.search);
    this.width = this.element.clientWidth;
    this.element.classList.toggle("over", !this.model);
    this.element.classList.toggle("bare", !state.scene);
    this.part("status").textContent = state.status;
    this.part("status").dataset.outcome = state.outcome ?? "";
    this.part("title").textContent = title;
    this.part("title").style.setProperty("--solver", colour);
    this.part("about").textContent = this.about(run);
    this.scene = makeScene(this.part("scene"), state.scene, this.model, state.outcome);
    const plan = this.model?.grid?.plan;
    this.part("plan").textContent = plan ? planText(plan) : "";
    this.part("plan").dataset.walkable = plan ? plan.blocked_at === null : "";
    if (this.model) {
      this.tree = makeTree(this.part("tree"), this.model, this.zoom);
      this.bars = makeBars(this.part("bars"), this.model, this.page.canStep(this.side) ? (action) => this.page.take(this.side, action) : null);
      this.chart = makeChart(this.part("chart"), this.model, (t) => this.page.scrub(t));
    }
    this.show();
  }

  about(run) {
    const name = this.page.state[this.side === "a" ? "run" : "vs"];
    const step = Number(this.page.question(this.side).step ?? run?.step);
    const origin = step ? `${name}, step ${step}` : name;
    if (!this.model) return origin;
    const { planner, iterations, rule, temperature } = this.model.solver;
    const stopped = this.steps < iterations ? `, stopped after ${this.steps}: nothing was left` : "";
    const search = planner === "best_first"
      ? `T = ${iterations}${stopped}, ${rule.replace("_", " ")}${rule === "sample" ? `, temperature ${temperature}` : ""}`
      : planner === "full" ? `full tree, ${iterations} expansions` : "one expansion";
    return `${search} · ${origin}`;
  }

  show() {
    this.scene?.show(this.t, this.marked, this.page.state.truth !== "");
    this.element.classList.toggle("with-truth", this.page.state.truth !== "");
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
    return [title, ` expands ${node.label ?? this.model.paths[expanded]}${value}${chance}`];
  }

  // Larger (1), smaller (−1), or all of the tree (0).
  resize(by) {
    if (!this.model) return;
    const most = Math.max(4, 1.2 * this.tree.largest);
    if (by === 0) this.zoom = this.zoom === FIT ? 1 : FIT;
    else if (this.zoom === FIT) this.zoom = by > 0 ? 1 : FIT;
    else this.zoom = by < 0 && this.zoom <= 1 ? FIT : Math.min(most, this.zoom * ZOOM ** by);
    this.draw();
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
