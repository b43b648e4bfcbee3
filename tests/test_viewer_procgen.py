"""The viewer's server shows Procgen: the episodes that were played, pixel by pixel."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the viewer needs dtsn[viewer]")
from PIL import Image

from dtsn.envs.procgen import GAMES, NUM_ACTIONS, SPLITS, ProcgenOptions, play_levels
from dtsn.evaluation.procgen import solver_policy
from dtsn.inspection import check_search
from dtsn.training.loading import load_solver
from dtsn.viewer.library import Library
from dtsn.viewer.replay import MAX_ACTIONS
from viewer_server import Server, save_procgen_solver


@pytest.fixture(scope="module")
def procgen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    runs = tmp_path_factory.mktemp("procgen")
    save_procgen_solver(runs / "leaper/dtsn-0")
    said = {"env": {"id": "dtsn/Procgen-v0", "options": {"game": "heist", "mode": "hard"}}}
    for name, data in (("nameless", {}), ("said", said)):
        shutil.copytree(runs / "leaper/dtsn-0", runs / name)
        (runs / name / "config.json").write_text(json.dumps(data))
    server = Server(Library(runs))
    yield server
    server.close()


LEAPER = {"game": "leaper", "mode": "easy"}
PROCGEN: dict[str, Any] = {"run": "leaper/dtsn-0", "options": LEAPER, "level": SPLITS["test"][0]}


def test_procgen_runs_are_listed_with_their_likely_game(procgen: Server) -> None:
    listed = json.loads(procgen.request("GET", "/api/runs")[2])
    runs = {run["name"]: run for run in listed["runs"] if run["environment"] == "procgen"}
    games = {name: (run["options"]["game"], run["options"]["mode"]) for name, run in runs.items()}
    unsaid = {"leaper/dtsn-0": ("leaper", "easy"), "nameless": ("coinrun", "easy")}
    assert games == {**unsaid, "said": ("heist", "hard")}
    game, mode = listed["worlds"]["procgen"]["fields"]
    assert game["choices"] == list(GAMES)
    assert (mode["by"], mode["choices"]) == ("game", {game: list(modes) for game, modes in GAMES.items()})
    assert listed["worlds"]["procgen"]["level"] == SPLITS["test"][0]


def test_following_the_answers_is_the_played_procgen_episode(procgen: Server) -> None:
    level, seed = SPLITS["test"][0] + 3, 2
    solver = load_solver(procgen.runs / "leaper/dtsn-0")
    policy = solver_policy(solver, np.array([level]), seed)
    (played,) = play_levels(ProcgenOptions("leaper"), [(0, level)], policy)
    length, actions = len(played.actions), played.actions.tolist()
    for n in (0, 1, length // 2, length - 1):
        question = PROCGEN | {"level": level, "seed": seed, "actions": actions[:n]}
        status, reply = procgen.search(**question)
        assert (status, reply) == procgen.search(**question)
        assert status == 200
        check_search(reply["search"])
        assert reply["search"]["action"] == actions[n]
        assert len(reply["search"]["nodes"]) == 1 + 4 * NUM_ACTIONS
        assert pixels(reply["state"]["scene"]["data"]).tolist() == played.observations[n].tolist()
        assert (reply["state"]["time"], reply["state"]["outcome"]) == (n, None)
    state = (reply := procgen.search(**PROCGEN | {"level": level, "actions": actions})[1])["state"]
    assert reply["search"] is None
    assert state["outcome"] == ("goal" if played.complete else "over")
    assert state["status"].endswith(f"after {length} steps; score {played.rewards.sum():.1f}.")
    assert pixels(state["scene"]["data"]).tolist() == played.observations[-1].tolist()
    assert procgen.search(**PROCGEN | {"level": level, "actions": [*actions, 0]})[0] == 422


def pixels(address: str) -> np.ndarray:
    """The frame [3, 64, 64] of a picture given as its own address."""
    kind, _, text = address.partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))).transpose(2, 0, 1)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"options": {"game": "Leaper"}}, "did you mean 'leaper'"),
        ({"options": LEAPER | {"mode": "memory"}}, "for leaper, got 'memory'"),
        ({"options": LEAPER | {"exits": "1"}}, "options must be among game, mode, got 'exits'"),
        ({"actions": [15]}, "actions must be below 15, got 15"),
        ({"actions": [4] * (MAX_ACTIONS + 1)}, "at most 1000 items"),
        ({"level": 2**31 - 1}, "got 2147483647"),
        ({"run": "shipped/navigation-dtsn", "actions": [4], "options": {}}, "must lie in 0..3, got 4"),
    ],
)
def test_bad_procgen_question_is_refused(procgen: Server, bad: dict[str, Any], sentence: str) -> None:
    status, reply = procgen.search(**PROCGEN | bad)
    assert status == 422
    assert sentence in reply["error"]


def test_missing_procgen_is_said(procgen: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ImportError("Procgen needs the system library libGL.so.1; run: apt-get install libgl1")

    monkeypatch.setattr("dtsn.envs.procgen.load_envpool", missing)
    status, reply = procgen.search(**PROCGEN)
    assert (status, reply["error"][:13]) == (503, "Procgen needs")
    assert procgen.search(iterations=1)[0] == 200
