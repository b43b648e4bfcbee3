"""What a search costs, as ratios measured side by side in one process.

Times of a shared machine mean little; the ratio of two functions called in turn means much more. Every ratio
is the median over rounds, its spread the middle half of the rounds. The yardstick is the *bare modules*:
the same layers called plainly with no tree logic, each on B·A rows with the one-hot action concatenated.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from dtsn.batch import Batch
from dtsn.bench.page import TARGETS, Row
from dtsn.config import NetworkConfig, SolverConfig
from dtsn.models.build import make_world_model
from dtsn.models.heads import MapHead
from dtsn.models.world_model import WorldModel
from dtsn.reproduce.navigation.variants import NAVIGATION
from dtsn.search import best_first_search
from dtsn.solvers import losses
from dtsn.solvers.solver import Solver

Times = dict[str, np.ndarray]  # name -> seconds of every round


# name -> (solver, the paper's milliseconds a step); 2080 Ti, batch 256.
RUNTIME_TABLE = {
    "Q-network": (SolverConfig("qnet"), 43),
    "TreeQN (depth 2)": (SolverConfig("treeqn", depth=2), 357),
    "TreeQN (depth 3)": (SolverConfig("treeqn", depth=3), None),
    "D-TSN (T=5)": (SolverConfig("dtsn", iterations=5), 153),
    "D-TSN (T=10)": (SolverConfig("dtsn", iterations=10), 294),
}

DEPTHS = (1, 50, 100, 200)  # T at which D-TSN's memory is measured


def run_bench(
    *, quick: bool = False, compiled: bool = False, progress: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Measure everything: ``{"ratios": {name: {value, target, spread}}, "machine": {…}, "rows": […]}``."""
    began = time.perf_counter()
    rows: list[Row] = []
    ratios: dict[str, tuple[float, float]] = {}
    parts = (search_against_modules, acting_latency, runtime_table, reference_against_ours, growth, pipeline)
    for part in parts:
        progress((part.__doc__ or "").splitlines()[0].rstrip("."))
        for row in part(quick):
            ratios |= row.pop("ratios", {})
            rows.append(row)
    if compiled:
        progress("Acting compiled by torch.compile: a minute")
        rows.append(compiled_acting())
    return {
        "ratios": {
            name: {"value": round(value, 4), "target": TARGETS[name].limit, "spread": round(spread, 4)}
            for name, (value, spread) in sorted(ratios.items())
        },
        "machine": {**machine(), "seconds": round(time.perf_counter() - began), "quick": quick},
        "rows": rows,
    }


# --- measuring ---------------------------------------------------------------------------------------


def interleave(functions: dict[str, Callable[[], object]], seconds: float, rounds: int = 3) -> Times:
    """Call the functions in turn, for ``seconds`` and at least ``rounds`` times, after a call to warm up."""
    for function in functions.values():
        function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    end, done = time.perf_counter() + seconds, 0
    while done < rounds or time.perf_counter() < end:
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
        done += 1
    return {name: np.array(values) for name, values in times.items()}


def ratio(times: Times, above: str, below: str) -> tuple[float, float]:
    """The median over rounds of one time by another, and the width of the middle half."""
    quotients = times[above] / times[below]
    low, middle, high = np.quantile(quotients, [0.25, 0.5, 0.75])
    return float(middle), float(high - low)


def milliseconds(times: Times) -> dict[str, float]:
    """Medians."""
    return {name: round(1000 * float(np.median(values)), 3) for name, values in times.items()}


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    info = Path("/proc/cpuinfo")
    models = [line for line in info.read_text().splitlines() if "model name" in line] if info.exists() else []
    return {
        "processor": models[0].split(":")[1].strip() if models else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


# --- the search against its modules ------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A size of search: A actions, T iterations, B rows, and a latent vector or map [16, 20, 20]."""

    actions: int
    iterations: int
    batch: int
    latent: int
    spatial: bool = False

    def world_model(self) -> WorldModel:
        """The library's modules at this size: a two-layer encoder for vectors, MapEncoder for maps."""
        shape = (3, 20, 20) if self.spatial else (self.latent,)
        config = NetworkConfig(
            encoder="grid" if self.spatial else "mlp",
            latent=self.latent,
            hidden=2 * self.latent if self.spatial else self.latent,
            spatial=self.spatial,
        )
        torch.manual_seed(0)
        return make_world_model(gymnasium.spaces.Box(0, 1, shape, np.float32), self.actions, config)

    def observation(self) -> Tensor:
        """Random observations ``[B, ...]``."""
        return torch.rand(self.batch, *((3, 20, 20) if self.spatial else (self.latent,)))


class BareModules(nn.Module):
    """The layers of a world model as anyone would call them: T times on B·A rows with one-hot actions."""

    def __init__(self, model: WorldModel, case: Case):
        super().__init__()
        wide, latent, hidden = case.latent + case.actions, case.latent, case.latent
        self.encoder, self.value = model.encoder, model.value_head
        self.iterations, self.actions = case.iterations, case.actions
        self.transition: nn.Module
        self.reward: nn.Module
        if case.spatial:
            hidden *= 2
            conv = nn.Conv2d(wide, hidden, 3, padding=1), nn.Conv2d(hidden, latent, 3, padding=1)
            self.transition = nn.Sequential(conv[0], nn.ReLU(), conv[1])
            self.reward = MapHead(wide, (20, 20), hidden)
        else:
            self.transition = nn.Sequential(nn.Linear(wide, hidden), nn.ReLU(), nn.Linear(hidden, latent))
            self.reward = nn.Sequential(nn.Linear(wide, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, observation: Tensor) -> Tensor:
        """All rewards and values in one vector."""
        latent = self.encoder(observation)  # [B, *latent]
        batch, actions = len(latent), self.actions
        one_hot = torch.eye(actions).view(1, actions, actions, *[1] * (latent.dim() - 2))
        one_hot = one_hot.expand(batch, -1, -1, *latent.shape[2:])  # [B, A, A, ...]
        out = []
        for _ in range(self.iterations):
            state = torch.tanh(latent).unsqueeze(1).expand(batch, actions, *latent.shape[1:])
            inputs = torch.cat([state, one_hot], 2).flatten(0, 1)  # [B·A, D + A, ...]
            change = self.transition(inputs).unflatten(0, (batch, actions))
            children = latent.unsqueeze(1) + change  # [B, A, *latent]
            out += [self.reward(inputs).flatten(), self.value(torch.tanh(children.flatten(0, 1)))]
            latent = children[:, 0]
        return torch.cat(out)


def search_functions(case: Case) -> dict[str, Callable[[], object]]:
    """Training and inference: by search, by fused modules (expand and value, no tree) and by bare modules."""
    model, observation = case.world_model(), case.observation()
    bare = BareModules(model, case)
    action, target = torch.randint(case.actions, (case.batch,)), torch.randn(case.batch)

    def search() -> Tensor:
        tree = best_first_search(model, model.encode(observation), iterations=case.iterations)
        loss = losses.q_loss(tree.q_values, action, target) + losses.cql_loss(tree.q_values, action)
        return loss[:, -1] + losses.expansion_loss(tree.log_probs, loss)

    def fused() -> Tensor:
        latent, out = model.encode(observation), []
        for _ in range(case.iterations):
            children, reward = model.expand(latent)[:2]
            out += [reward.flatten(), model.value(children.flatten(0, 1))]
            latent = children[:, 0]
        return torch.cat(out)

    def acting() -> Tensor:
        return best_first_search(model, model.encode(observation), iterations=case.iterations).q

    def step(forward: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: forward().mean().backward()  # type: ignore[no-untyped-call]

    return {
        "train": step(search),
        "train_fused": step(fused),
        "train_bare": step(lambda: bare(observation)),
        "infer": torch.inference_mode()(acting),  # as Solver.act does
        "infer_fused": torch.inference_mode()(fused),
        "infer_bare": torch.inference_mode()(lambda: bare(observation)),
    }


def search_against_modules(quick: bool) -> Iterator[Row]:
    """Best-first search against the bare modules it is made of."""
    sizes = [(a, t, b) for a in (4, 15) for t in (5, 10, 20) for b in (1, 32, 256)]
    cases = [Case(a, t, b, latent) for a, t, b in sizes for latent in (64, 256)]
    cases += [
        Case(a, t, b, 16, spatial=True) for a, t, b in sizes if t * b <= 160
    ]  # larger maps take minutes
    headline = {Case(a, 10, 256, 256) for a in (4, 15)} | {Case(4, 10, 1, 64)}
    if quick:
        cases = [case for case in cases if case in headline]
    for case in cases:
        rounds = 7 if case in headline and not quick else 3
        # Training and inference apart: what runs after a training step finds cold caches.
        functions = search_functions(case)
        times: Times = {}
        for kind in ("train", "infer"):
            group = {name: function for name, function in functions.items() if name.startswith(kind)}
            times |= interleave(group, 0.5, rounds)
        pairs = [(kind, other) for kind in ("train", "infer") for other in ("bare", "fused")]
        found = {f"{kind}_over_{other}": ratio(times, kind, f"{kind}_{other}") for kind, other in pairs}
        row = {"part": "search", **vars(case), "ms": milliseconds(times)}
        row |= {name: [round(x, 3) for x in value] for name, value in found.items()}
        if case in headline and case.batch == 256:
            a = case.actions
            row["ratios"] = {f"train_over_modules_a{a}_b256": found["train_over_bare"]}
            if a == 15:
                row["ratios"]["train_over_fused_a15_b256"] = found["train_over_fused"]
        elif case in headline:
            row["ratios"] = {"infer_over_modules_a4_b1": found["infer_over_bare"]}
        yield row


# --- acting ------------------------------------------------------------------------------------------


class Constant:
    """A world model that costs nothing: what a search with it takes is its bookkeeping."""

    def __init__(self, model: WorldModel, latent: Tensor):
        self.children, self.reward = model.expand(latent)[:2]
        self.values = model.value(self.children.flatten(0, 1))

    def expand(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Always the same children and rewards."""
        return self.children, self.reward

    def value(self, latent: Tensor) -> Tensor:
        """Always the same values."""
        return self.values


@torch.inference_mode()
def acting_latency(quick: bool) -> Iterator[Row]:
    """One decision: where the time goes with batch 1 and T=10."""
    case = Case(4, 10, 1, 64)
    model, observation = case.world_model(), case.observation()
    latent = model.encode(observation)
    constant = Constant(model, latent)

    def modules() -> None:
        for _ in range(case.iterations):
            children, _ = model.expand(latent)[:2]
            model.value(children.flatten(0, 1))

    parts: dict[str, Callable[[], object]] = {
        "all": lambda: best_first_search(model, model.encode(observation), iterations=case.iterations),
        "encoder": lambda: model.encode(observation),
        "modules": modules,
        "search": lambda: best_first_search(constant, latent, iterations=case.iterations),
    }
    yield {"part": "acting", **vars(case), "ms": milliseconds(interleave(parts, 0.5 if quick else 2.0))}


@torch.inference_mode()
def compiled_acting() -> Row:
    """One decision through ``torch.compile``, against the bare modules."""
    case = Case(4, 10, 1, 64)
    model, observation = case.world_model(), case.observation()
    bare = BareModules(model, case)
    uniforms = torch.rand(case.batch, case.iterations)

    def act() -> Tensor:
        return best_first_search(
            model, model.encode(observation), iterations=case.iterations, uniforms=uniforms
        ).q

    fast, start = torch.compile(act), time.perf_counter()
    torch.testing.assert_close(fast(), act())
    compiling = time.perf_counter() - start
    functions = {
        "bare": lambda: bare(observation),
        "eager": act,
        "compiled": fast,
    }
    times = interleave(functions, 2.0)
    return {
        "part": "compiled",
        **vars(case),
        "ms": milliseconds(times),
        "compile_seconds": round(compiling, 1),
        "compiled_over_bare": [round(x, 3) for x in ratio(times, "compiled", "bare")],
    }


# --- the paper's runtime table -----------------------------------------------------------------------


def frames_step(config: SolverConfig, precision: str = "float32", batch: int = 256) -> Callable[[], object]:
    """A training step, forward and backward, on 64×64 frames: A=15, Nature encoder, latent 256."""
    space = gymnasium.spaces.Box(0, 255, (3, 64, 64), np.uint8)
    network = NetworkConfig(encoder="nature", latent=256, hidden=256, precision=precision)  # type: ignore[arg-type]
    solver = Solver.create(config, space, gymnasium.spaces.Discrete(15), network=network, seed=0)
    rng = torch.Generator().manual_seed(0)
    frames = torch.randint(256, (2, batch, 3, 64, 64), dtype=torch.uint8, generator=rng)
    data = Batch(
        observation=frames[0],
        action=torch.randint(15, (batch,), generator=rng),
        reward=torch.randn(batch, generator=rng),
        q_target=torch.randn(batch, generator=rng),
        next_observation=frames[1],
        terminated=torch.zeros(batch, dtype=torch.bool),
    )

    def step() -> None:
        solver.zero_grad()
        solver.loss(data).total.backward()  # type: ignore[no-untyped-call]

    return step


def peak_memory(config: SolverConfig, batch: int = 256) -> tuple[float, float]:
    """Peak resident memory in GB of a process that makes one training step, and the seconds it took."""
    torch.set_num_threads(1)
    step, start = frames_step(config, batch=batch), time.perf_counter()
    step()
    seconds = time.perf_counter() - start
    # Not getrusage: its peak is inherited from the parent that started this process.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e9, seconds


def runtime_table(quick: bool) -> Iterator[Row]:
    """The paper's runtime table: training steps of the solvers on 64×64 frames."""
    names = [name for name in RUNTIME_TABLE if name != "TreeQN (depth 3)"]  # too slow to repeat
    steps = {name: frames_step(RUNTIME_TABLE[name][0]) for name in names}
    steps["bfloat16"] = frames_step(RUNTIME_TABLE["D-TSN (T=10)"][0], "bfloat16")
    times = interleave(steps, 0, 2 if quick else 5)
    # A fresh process each: the peak of a process never falls again.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        memory = {name: pool.apply(peak_memory, [config]) for name, (config, _) in RUNTIME_TABLE.items()}
        deep = {t: pool.apply(peak_memory, [SolverConfig("dtsn", iterations=t), 32])[0] for t in DEPTHS}
    ratios = {
        "dtsn10_over_qnet": ratio(times, "D-TSN (T=10)", "Q-network"),
        "treeqn2_over_dtsn10": ratio(times, "TreeQN (depth 2)", "D-TSN (T=10)"),
        "treeqn3_peak_gb": (memory["TreeQN (depth 3)"][0], 0.0),
    }
    for name, (_, paper) in RUNTIME_TABLE.items():
        peak, once = memory[name]
        seconds = float(np.median(times[name])) if name in times else once
        yield {
            "part": "runtime",
            "solver": name,
            "seconds": round(seconds, 3),
            "over_qnet": round(seconds / float(np.median(times["Q-network"])), 2),
            "paper_over_qnet": None if paper is None else round(paper / 43, 2),
            "peak_gb": round(peak, 2),
            "ratios": ratios,
        }
    yield {
        "part": "memory",
        "batch": 32,
        "iterations": list(DEPTHS),
        "peak_gb": [round(gb, 2) for gb in deep.values()],
    }
    yield {
        "part": "precision",
        "solver": "D-TSN (T=10)",
        "seconds": round(float(np.median(times["bfloat16"])), 3),
        "float32_over_bfloat16": round(ratio(times, "D-TSN (T=10)", "bfloat16")[0], 2),
    }


# --- one sample at a time ----------------------------------------------------------------------------


@dataclass
class Node:
    """A node of the per-sample search."""

    latent: Tensor  # [1, D]
    reward: Tensor | float = 0.0  # on the edge into the node
    returns: Tensor | float = 0.0  # discounted rewards from the root
    value: Tensor | float = 0.0
    depth: int = 0
    children: tuple[Node, ...] = ()


def textbook_search(
    model: WorldModel, root: Tensor, iterations: int, discount: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Algorithm 1 for one sample ``[1, D]``: node objects, recursive Bellman backup; Q [T, A], log π [T]."""

    def q_value(node: Node) -> Any:
        below = [q_value(child) for child in node.children]
        return node.reward + discount * (torch.stack(below).max() if below else node.value)

    def child(node: Node, latent: Tensor, reward: Tensor) -> Node:
        returns = node.returns + discount**node.depth * reward
        return Node(latent, reward, returns, model.value(latent)[0], node.depth + 1)

    top = Node(root)
    open_nodes, q_values, log_probs = [top], [], [root.new_zeros(())]
    for t in range(iterations):
        choice = 0
        if t:
            scores = torch.stack([node.returns + discount**node.depth * node.value for node in open_nodes])  # type: ignore[misc]
            log_policy = torch.log_softmax(scores, 0)
            choice = int(torch.multinomial(log_policy.detach().exp(), 1))
            log_probs.append(log_policy[choice])
        node = open_nodes.pop(choice)
        children, rewards = model.expand(node.latent)[:2]
        node.children = tuple(
            child(node, children[:, action], rewards[0, action]) for action in range(model.num_actions)
        )
        open_nodes += node.children
        q_values.append(torch.stack([q_value(node) for node in top.children]))
    return torch.stack(q_values), torch.stack(log_probs)


def reference_against_ours(quick: bool) -> Iterator[Row]:
    """A per-sample Python search against ours: training step, A=15, B=256, T=10, latent 64."""
    case = Case(15, 10, 256, 64)
    model, observation = case.world_model(), case.observation()

    def one_sample() -> None:
        q_values, log_probs = textbook_search(model, model.encode(observation[:1]), case.iterations)
        (q_values.sum() + log_probs.sum()).backward()  # type: ignore[no-untyped-call]

    times = interleave({"sample": one_sample, "ours": search_functions(case)["train"]}, 0 if quick else 6.0)
    times["reference"] = case.batch * times["sample"]  # samples one after the other
    found = ratio(times, "reference", "ours")
    yield {
        "part": "reference",
        **vars(case),
        "ms": milliseconds(times),
        "ratios": {"reference_over_dtsn": found},
        "reference_over_ours": [round(x, 1) for x in found],
    }


# --- growth ------------------------------------------------------------------------------------------


def growth(quick: bool) -> Iterator[Row]:
    """How a training step grows with T, A, B and the latent."""
    base = Case(15, 20, 32, 256)
    sweeps = {
        "iterations": [20, 200] if quick else [5, 10, 20, 50, 100, 200],
        "actions": [] if quick else [2, 4, 8, 15, 30],
        "batch": [] if quick else [8, 16, 32, 64, 128],
        "latent": [] if quick else [32, 64, 128, 256],
    }
    for name, sizes in sweeps.items():
        if not sizes:
            continue
        steps = {str(n): search_functions(Case(**{**vars(base), name: n}))["train"] for n in sizes}
        times = interleave(steps, 0, 2 if quick else 3)
        medians = np.array([np.median(times[str(n)]) for n in sizes])
        half = len(sizes) // 2  # small sizes pay for launching operations, large ones for arithmetic
        row: Row = {
            "part": "growth",
            "over": name,
            "sizes": sizes,
            "ms": [round(1000 * float(x), 2) for x in medians],
            "exponent": round(
                float(np.polyfit(np.log(sizes[half - 1 :]), np.log(medians[half - 1 :]), 1)[0]), 2
            ),
        }
        if name == "iterations":
            row["ratios"] = {"t200_over_t20": ratio(times, "200", "20")}
        yield row


# --- environments and data ---------------------------------------------------------------------------


def pipeline(quick: bool) -> Iterator[Row]:
    """Environment steps, and loading data against training on it."""
    from dtsn.data.reader import Dataset
    from dtsn.envs.navigation import NavigationVectorEnv, grid_symmetries
    from dtsn.experts.collect import collect_navigation
    from dtsn.training.trainer import Trainer

    envs = NavigationVectorEnv(256)
    envs.reset(seed=0)
    rng = np.random.default_rng(0)
    times = interleave({"step": lambda: envs.step(rng.integers(4, size=256))}, 0.5 if quick else 2.0)
    yield {
        "part": "environment",
        "name": "navigation",
        "steps_per_second": round(256 / np.median(times["step"])),
    }
    yield from _procgen(quick)
    with tempfile.TemporaryDirectory() as folder:
        path = collect_navigation(Path(folder) / "navigation.h5", episodes=50)
        with Dataset(path) as dataset:
            trainer = Trainer(NAVIGATION, dataset.observation_shape, dataset.num_actions)
            trainer.step = NAVIGATION.search_warmup + NAVIGATION.search_ramp  # now with the whole search
            batches = dataset.batches(NAVIGATION.batch_size, seed=0, transform=grid_symmetries)
            batch = next(batches)
            functions = {"load": lambda: next(batches), "train": lambda: trainer.update(batch)}
            times = interleave(functions, 1.0 if quick else 4.0)
    yield {
        "part": "data",
        "name": "navigation",
        "ms": milliseconds(times),
        "load_over_train": [round(x, 4) for x in ratio(times, "load", "train")],
    }


def _procgen(quick: bool) -> Iterator[Row]:
    from dtsn.envs.procgen import ProcgenOptions, ProcgenPool

    try:
        pool = ProcgenPool(ProcgenOptions("coinrun"), 64)
    except ImportError:  # without the extra dtsn[procgen]
        return
    pool.reset()
    rng = np.random.default_rng(0)
    times = interleave({"step": lambda: pool.step(rng.integers(15, size=64))}, 0.5 if quick else 2.0)
    rate = round(64 / np.median(times["step"]))
    yield {"part": "environment", "name": "procgen (coinrun)", "steps_per_second": rate}
