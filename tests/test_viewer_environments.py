"""The viewer shows solvers in other people's environments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the viewer needs dtsn[viewer]")

from dtsn.config import SolverConfig
from dtsn.inspection import check_search
from dtsn.solvers.solver import Solver
from dtsn.viewer import show
from dtsn.viewer.library import Library, Shown
from dtsn.viewer.replay import GymWorld
from viewer_server import Server


class Corridor(gymnasium.Env):
    """Five cells; left is closed at the left end."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    render_mode = "ansi"

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(1, 3))
        return self.observe()

    def step(self, action: int) -> Any:
        self.place += 2 * action - 1
        observation, info = self.observe()
        return observation, -1.0, self.place == 4, False, info

    def observe(self) -> Any:
        return np.array([self.place / 4], np.float32), {"action_mask": np.array([self.place > 0, True])}

    def render(self) -> str:
        return "\x1b[1m" + "".join("R" if n == self.place else "." for n in range(5)) + "\x1b[0m"


def test_show_serves_solvers_in_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Library] = []
    monkeypatch.setattr("dtsn.viewer.server.serve", lambda library, *_: served.append(library))
    spaces = Corridor.observation_space, Corridor.action_space
    solver = Solver.create("dtsn", *spaces)
    show(solver, Corridor())
    show({"mine": solver, "other": Solver.create("qnet", *spaces)}, Corridor(), actions=("left", "right"))
    assert [list(library.given) for library in served] == [["D-TSN"], ["mine", "other"]]
    assert served[1].given["mine"].world.actions == ("left", "right")
    with pytest.raises(ValueError, match="actions must be 2 names, got 1"):
        show(solver, Corridor(), actions=("left",))
    three = Solver.create("dtsn", spaces[0], gymnasium.spaces.Discrete(3))
    with pytest.raises(ValueError, match="solver 'D-TSN' must have 2 actions as env has, got 3"):
        show(three, Corridor())


@pytest.fixture(scope="module")
def corridor() -> Iterator[Server]:
    spaces = Corridor.observation_space, Corridor.action_space
    solvers = {
        name: Solver.create(SolverConfig(name, iterations=3), *spaces, seed=0) for name in ("dtsn", "qnet")
    }
    world = GymWorld(Corridor(), actions=("left", "right"), label=lambda latent: f"{len(latent)} numbers")
    server = Server(Library(given={name: Shown(solver, world) for name, solver in solvers.items()}))
    yield server
    server.close()


def test_other_people_s_environments_are_shown(corridor: Server) -> None:
    overview = json.loads(corridor.request("GET", "/api/runs")[2])
    assert [run["name"] for run in overview["runs"]] == ["dtsn", "qnet"]
    assert overview["worlds"]["Corridor"]["actions"] == ["left", "right"]
    status, reply = corridor.search(run="dtsn", options={}, level=5, actions=[0])
    assert status == 200
    check_search(reply["search"])
    assert reply["state"]["scene"]["kind"] == "text"
    assert reply["state"]["scene"]["text"] in (".R...", "R....")
    assert (reply["state"]["time"], reply["state"]["status"]) == (1, "Step 1; return -1.")
    assert reply["search"]["nodes"][0]["label"].endswith(" numbers")
    assert corridor.search(run="dtsn", options={}, level=5, actions=[0]) == (status, reply)
    start = corridor.search(run="qnet", options={}, level=5)[1]["state"]["scene"]["text"].index("R")
    left_end = corridor.search(run="dtsn", options={}, level=5, actions=[0] * start)[1]["search"]
    assert left_end["q"][0] is None  # left is closed there
    over = corridor.search(run="dtsn", options={}, level=5, actions=[1] * (4 - start))[1]
    assert (over["search"], over["state"]["outcome"]) == (None, "over")
    assert corridor.search(run="dtsn", options={}, level=5, actions=[2])[0] == 422
