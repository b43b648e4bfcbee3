"""Show what the search is good for: a Q-network and a D-TSN on the same halls."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtsn.cli.evaluate import play_scenario, trained_halls
from dtsn.cli.options import Device, load
from dtsn.cli.terminal import console, done, make_table
from dtsn.config import SOLVERS
from dtsn.pretrained import shipped
from dtsn.processes import prepare
from dtsn.storage import replaced

if TYPE_CHECKING:
    from dtsn.evaluation.rows import NavigationRow
    from dtsn.solvers.solver import Solver

SHOWN = ("qnet", "dtsn")  # from left to right
STEPS_SHOWN = 40  # of an episode: a robot that circles does so until time is up
SECONDS_PER_STEP = 0.25


def demo(out: Path = Path("demo"), levels: int = 1000, device: Device = "auto") -> None:
    """See it work in a few minutes: a Q-network and a D-TSN on the same unseen halls.

    Plays Navigation levels with the two shipped solvers, which were trained on the same 1000 trajectories
    through halls with two exits. Writes an episode with one exit as an animation of both side by side,
    and D-TSN's first search in it as a picture.

    Example: dtsn demo --levels 500

    Args:
        out: folder for the animation and the picture.
        levels: number of levels in each scenario.
        device: where to run; auto takes CUDA where there is one.
    """
    from dtsn.inspection import describe_navigation
    from dtsn.inspection.figures import search_figure
    from dtsn.reproduce.paper import PAPER_NAVIGATION

    prepare()
    solvers = {name: load(shipped(name), device) for name in SHOWN}
    table = make_table(f"{levels} unseen halls each; trained on 1000 trajectories through two-exit halls")
    rows: dict[str, list[NavigationRow]] = {}
    for exits in (2, 1):
        for name, solver in solvers.items():
            title = f"{SOLVERS[name].title}, {exits} exit{'s' * (exits - 1)}"
            paper = f"{PAPER_NAVIGATION[name, exits, 10].success}%"
            options = trained_halls(shipped(name), exits)
            rows[name] = play_scenario(table, title, solver, "test", levels, options, paper=paper)
    console().print(table)
    level = telling_level(rows["qnet"], rows["dtsn"])
    film = side_by_side(solvers, level, out / "side-by-side.gif")
    document = describe_navigation(solvers["dtsn"], level, trained_halls(shipped("dtsn"), 1))
    picture = search_figure(document, out / "search.png")
    console().print(f"level {level}, one exit, both solvers: {film}\nD-TSN's first search in it: {picture}")
    done(f"wrote {out}", f"dtsn play --level {level} (watch D-TSN here), dtsn train (train your own)")


def telling_level(without: list[NavigationRow], with_search: list[NavigationRow]) -> int:
    """Return the first level that only the solver with a search solves; the first of all if there is none."""
    pairs = zip(without, with_search, strict=True)
    found = (ours.level for theirs, ours in pairs if ours.success and not theirs.success)
    return next(found, with_search[0].level)


def side_by_side(solvers: Mapping[str, Solver], level: int, path: Path) -> Path:
    """Write the episodes of several solvers at a level with one exit as one animation."""
    from PIL import Image, ImageDraw, ImageFont

    from dtsn.inspection import watch_navigation
    from dtsn.inspection.figures import episode_gif

    films: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, solver in solvers.items():
            options = trained_halls(shipped(name), 1)
            decisions = list(islice(watch_navigation(solver, level, options), STEPS_SHOWN))
            with Image.open(episode_gif(decisions, Path(folder) / f"{name}.gif")) as film:
                films[SOLVERS[name].title] = _frames(film)
    length = max(map(len, films.values()))
    pictures = []
    for time in range(length):
        shown = {title: film[min(time, len(film) - 1)] for title, film in films.items()}
        width = sum(frame.width for frame in shown.values())
        picture = Image.new("RGB", (width, 24 + max(frame.height for frame in shown.values())), "white")
        pen, left = ImageDraw.Draw(picture), 0
        for title, frame in shown.items():
            pen.text((left + 6, 4), title, fill="black", font=ImageFont.load_default(15))
            picture.paste(frame, (left, 24))
            left += frame.width
        pictures.append(picture.quantize(64))
    milliseconds = [int(1000 * SECONDS_PER_STEP)] * (length - 1) + [2000]
    with replaced(path) as partial:
        pictures[0].save(
            partial, "GIF", save_all=True, append_images=pictures[1:], duration=milliseconds, loop=0
        )
    return path


def _frames(film: Any) -> list[Any]:
    """Return every frame of an animation."""
    frames = []
    for index in range(film.n_frames):
        film.seek(index)
        frames.append(film.convert("RGB"))
    return frames
