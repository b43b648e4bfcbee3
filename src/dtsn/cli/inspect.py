"""Look into one search, at an episode, or at both in the browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import tyro

from dtsn.cli.evaluate import trained_halls
from dtsn.cli.options import Device, Layout, at_least_one, load, load_for_halls, pick_device
from dtsn.cli.terminal import console, done, progress
from dtsn.config import Rule
from dtsn.errors import UserError
from dtsn.processes import prepare
from dtsn.reproduce.navigation.variants import SHOWN_LEVEL

if TYPE_CHECKING:
    from dtsn.inspection import SearchDocument
    from dtsn.solvers.solver import Solver


def plan(
    run: tyro.conf.Positional[Path | None] = None,
    state: Path | None = None,
    hand: tuple[int, int, int, int] | None = None,
    level: int = SHOWN_LEVEL,
    exits: Literal[1, 2] = 1,
    exit_layout: Layout | None = None,
    time: int = 0,
    iterations: int | None = None,
    rule: Rule | None = None,
    temperature: float | None = None,
    out: Path | None = None,
    lines: int = 40,
    seed: int = 0,
    device: Device = "auto",
    threads: int = 1,
) -> None:
    """Show one search: the tree, the probability of each expansion, the values, the planned path.

    Shows exactly what the solver does in dtsn eval at the same level, step and seed.

    Example: dtsn plan --level 2000003 --exits 1 --out tree.svg

    Args:
        run: a run folder or a checkpoint; the shipped D-TSN if not given.
        state: show an observation (.npy) or a saved search (.json) instead of a level. A saved search is
            shown as it is, unless run, iterations, rule or temperature ask for a new one.
        hand: four cards of the Game of 24 instead of a level, for a run of dtsn reproduce game24.
        level: Navigation level; test levels are 2000000 to 2999999.
        exits: number of exits of the hall.
        exit_layout: exits anywhere on the walls, or on opposite sides; as trained if not given.
        time: step of the episode; the solver itself drives there.
        iterations: expansions of the search, at most 1000; as trained if not given.
        rule: how the search picks nodes; as trained if not given.
        temperature: temperature of the expansion policy; as trained if not given.
        out: also write the search as a picture (.svg, .png) or as data (.json).
        lines: number of nodes to print; the rest is counted.
        seed: seed of the sampled expansions.
        device: where to run; auto takes CUDA where there is one.
        threads: CPU threads; small networks are fastest with one.
    """
    if out is not None and out.suffix not in (".svg", ".png", ".json"):
        raise UserError(f"out must end in .svg, .png or .json, got {out}")
    at_least_one(lines=lines)
    from dtsn.inspection import describe_game24, describe_navigation, write_search
    from dtsn.inspection.text import search_text

    prepare(threads)
    search: dict[str, Any] = {"iterations": iterations, "rule": rule, "temperature": temperature}
    if hand is not None:
        document = describe_game24(load_game24(run, device), hand, time=time, seed=seed, **search)
    elif state is None:
        options = trained_halls(run, exits, exit_layout)
        solver = load_for_halls(run, options, device)
        document = describe_navigation(solver, level, options, time=time, seed=seed, **search)
    else:
        document = plan_state(state, run, device, seed, search)
    console().print(search_text(document, lines, console().width))
    of = f" {run}" if run else ""
    if out is None:
        return done("nothing written", f"dtsn plan{of} --out tree.svg (or .png, .json), dtsn play{of}")
    if out.suffix == ".json":
        write_search(out, document)
    else:
        from dtsn.inspection.figures import search_figure

        search_figure(document, out)
    again = f"dtsn plan --state {out}" if out.suffix == ".json" else f"dtsn play{of}"
    done(f"wrote {out} ({out.stat().st_size / 1e3:.0f} kB)", again)


def plan_state(
    state: Path, run: Path | None, device: str, seed: int, search: dict[str, Any]
) -> SearchDocument:
    """Return the search of a saved state: as it was written, or anew where other settings are given."""
    from dtsn.inspection import describe_observation, read_search, search_again

    if state.suffix == ".npy":
        return describe_observation(load(run, device), state, seed=seed, **search)
    if state.suffix != ".json":
        raise UserError(f"state must end in .json or .npy, got {state}")
    document = read_search(state)
    if run is None and all(value is None for value in search.values()):
        return document
    return search_again(load(run, device), document, seed=seed, **search)


def load_game24(run: Path | None, device: str) -> Solver:
    """Load a solver of the Game of 24: its rules are the package's, a folder holds its weights."""
    if run is None:
        raise UserError("run must be given with a hand: dtsn reproduce game24 trains solvers")
    from dtsn.evaluation.game24 import known_game24

    return load(run, device, world_model=known_game24())


def play(
    run: tyro.conf.Positional[Path | None] = None,
    hand: tuple[int, int, int, int] | None = None,
    level: int = SHOWN_LEVEL,
    exits: Literal[1, 2] = 1,
    exit_layout: Layout | None = None,
    iterations: int | None = None,
    rule: Rule | None = None,
    temperature: float | None = None,
    out: Path | None = None,
    delay: float = 0.25,
    seed: int = 0,
    device: Device = "auto",
    threads: int = 1,
) -> None:
    """Play one episode: the hall, the path that each search plans, and its Q-values.

    It is the episode that dtsn eval plays at the same level and seed.

    Example: dtsn play --level 2000003 --exits 1 --out episode.gif

    Args:
        run: a run folder or a checkpoint; the shipped D-TSN if not given.
        hand: four cards of the Game of 24 instead of a level, for a run of dtsn reproduce game24.
        level: Navigation level; test levels are 2000000 to 2999999.
        exits: number of exits of the hall.
        exit_layout: exits anywhere on the walls, or on opposite sides; as trained if not given.
        iterations: expansions of each search, at most 1000; as trained if not given.
        rule: how the search picks nodes; as trained if not given.
        temperature: temperature of the expansion policy; as trained if not given.
        out: write an animation (.gif) instead of showing the episode here.
        delay: seconds per step.
        seed: seed of the sampled expansions.
        device: where to run; auto takes CUDA where there is one.
        threads: CPU threads; small networks are fastest with one.
    """
    if out is not None and out.suffix != ".gif":
        raise UserError(f"out must end in .gif, got {out}")
    if out is not None and hand is not None:
        raise UserError(f"out must be left out for a hand, whose games are shown as text, got {out}")
    if not 0 <= delay <= 60:
        raise UserError(f"delay must be from 0 to 60 seconds, got {delay}")
    from dtsn.inspection import watch_game24, watch_navigation

    prepare(threads)
    search: dict[str, Any] = {"iterations": iterations, "rule": rule, "temperature": temperature}
    if hand is not None:
        from dtsn.inspection.text import show_episode

        game = watch_game24(load_game24(run, device), hand, seed=seed, **search)
        steps, outcome = show_episode(game, console(), delay)
        console().print(f"{outcome} after {steps} decisions")
        cards = " ".join(map(str, hand))
        return done("nothing written", f"dtsn plan {run} --hand {cards} --time 3")
    options = trained_halls(run, exits, exit_layout)
    decisions = watch_navigation(load_for_halls(run, options, device), level, options, seed=seed, **search)
    if out is None:
        from dtsn.inspection.text import show_episode

        steps, outcome = show_episode(decisions, console(), delay)
    else:
        from dtsn.inspection.figures import episode_gif

        frames = []
        with progress(f"playing level {level}") as update:
            for frame in decisions:
                frames.append(frame)
                update(len(frames), options.max_steps)
        steps, outcome = len(frames), frames[-1][1]
        episode_gif(frames, out, delay)
    console().print(f"{outcome} after {steps} steps")
    of = f" {run}" if run else ""
    last = f"dtsn plan{of} --level {level} --exits {exits} --time {steps - 1}"
    done(f"wrote {out} ({out.stat().st_size / 1e3:.0f} kB)" if out else "nothing written", last)


def view(
    files: tyro.conf.Positional[tuple[Path, ...]] = (),
    runs: Path = Path("runs"),
    host: str = "127.0.0.1",
    port: int = 8765,
    browser: Annotated[bool, tyro.conf.arg(aliases=["--open"])] = False,
    device: Device = "auto",
) -> None:
    """Open the viewer: a local web page that shows how trained solvers search.

    Shows the shipped solvers and the runs below a folder (Navigation, or Procgen with dtsn[procgen]): the
    hall or the frame, the search tree as it grows, the Q-values after every iteration, and two solvers side
    by side.

    Example: dtsn view --runs runs --open

    Args:
        files: searches that dtsn plan or write_search wrote (.json), to open beside the runs.
        runs: folder with run folders; nothing outside of it is read.
        host: address to listen on; the default is reachable from this machine only.
        port: port to listen on; 0 takes a free one.
        browser: open the page in the browser.
        device: where to run; auto takes CUDA where there is one.
    """
    try:
        from dtsn.viewer.guard import is_loopback
        from dtsn.viewer.library import Library
        from dtsn.viewer.server import serve
    except ModuleNotFoundError as error:
        raise ImportError(
            f"dtsn view needs FastAPI, uvicorn and pillow ({error}): pip install 'dtsn[viewer]'"
        ) from error

    def ready(address: str) -> None:
        print(f"dtsn view is at {address}", flush=True)
        if not is_loopback(host):
            print(
                f"warning: other machines that reach {host} can use it too: there is no password", flush=True
            )
        if browser:
            webbrowser.open(f"{address}#run=file/{quote(files[0].name)}" if files else address)

    from dtsn.inspection import read_search

    prepare()
    documents = {path.name: read_search(path) for path in files}
    serve(Library(runs, pick_device(device), documents=documents), host, port, ready)
    print("stopped")
