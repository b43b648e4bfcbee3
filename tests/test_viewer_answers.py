"""The viewer's server through real sockets: it answers what the library computes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the viewer needs dtsn[viewer]")

from dtsn import pretrained
from dtsn.checkpoint import load_state
from dtsn.config import SOLVERS
from dtsn.envs.navigation import NavigationOptions
from dtsn.evaluation.navigation import evaluate_navigation, trace_navigation
from dtsn.inspection import check_search, describe_navigation, to_json
from dtsn.pretrained import shipped
from dtsn.training.loading import load_solver
from dtsn.viewer.library import SOLVERS_KEPT, Library
from dtsn.viewer.server import MEDIA_TYPES, PAGE
from viewer_server import DTSN, LEVEL, Server, easy_level
from viewer_server import runs as runs
from viewer_server import server as server


@pytest.mark.parametrize("name", sorted(path.name for path in PAGE.iterdir()))
def test_page_is_served_with_closed_doors(server: Server, name: str) -> None:
    path = "/" if name == "index.html" else f"/{name}"
    server.request("GET", path)
    status, headers, content = server.request("GET", path)
    assert status == 200
    assert content == (PAGE / name).read_bytes()
    assert headers["content-type"].partition(";")[0] == MEDIA_TYPES[Path(name).suffix]
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert not any(name.startswith("access-control") for name in headers)


def test_page_needs_nothing_from_elsewhere() -> None:
    for path in PAGE.iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")  # a name, not an address
        for word in (
            "://",
            "eval(",
            "innerHTML",
            'style="',
            "onclick=",
        ):  # most of them the policy would drop
            assert word not in text, path.name


def test_runs_are_listed(server: Server) -> None:
    status, _, content = server.request("GET", "/api/runs")
    overview = json.loads(content)
    listed = {run.pop("name"): run for run in overview["runs"]}
    shown = ["shipped/navigation-dtsn", "shipped/navigation-qnet", "exported", "study/dtsn-0"]
    assert status == 200
    assert sorted(name for name, run in listed.items() if "problem" not in run) == sorted(shown)
    problems = {name: run["problem"] for name, run in listed.items() if "problem" in run}
    assert set(problems) == {"damaged", "empty", "frames", "linked-file", "linked-step"}
    assert "no checkpoint yet" in problems["empty"]
    assert "outside the folder" in problems["linked-file"]
    assert "dtsn.viewer.show" in problems["frames"]
    assert listed["study/dtsn-0"] == {
        "solver": "dtsn",
        "planner": "best_first",
        "environment": "navigation",
        "size": 20,
        "options": {"exits": "1", "layout": "opposite", "hall": "8-11"},
        "iterations": 10,
        "rule": "sample",
        "temperature": 1.0,
        "step": load_state(shipped("dtsn"))["step"],
        "steps": [2000, 3000],
    }
    usual = NavigationOptions()
    hall = f"{usual.hall[0]}-{usual.hall[1]}"
    assert listed["exported"]["options"] == {"exits": "1", "layout": usual.exit_layout, "hall": hall}
    assert listed["shipped/navigation-qnet"]["planner"] == "one_step"
    assert listed["shipped/navigation-qnet"]["iterations"] is None
    assert overview["solvers"]["dtsn"] == {"title": "D-TSN", "colour": SOLVERS["dtsn"].colour}


def test_checkpoint_of_a_run_can_be_chosen(server: Server) -> None:
    for step, status in ((None, 200), (2000, 200), (3000, 200), (5, 422)):
        assert server.search(run="study/dtsn-0", step=step, iterations=1)[0] == status


def test_folder_may_be_a_run_itself(runs: Path) -> None:
    library = Library(runs / "study/dtsn-0")
    assert library.entries()[-1]["name"] == "."
    assert library.find(".").solver.config.name == "dtsn"


def test_missing_folder_shows_the_shipped_solvers(tmp_path: Path) -> None:
    assert len(Library(tmp_path / "none").entries()) == 2


@pytest.mark.parametrize("run", ["shipped/navigation-dtsn", "study/dtsn-0", "exported"])
def test_search_is_the_library_s(server: Server, run: str) -> None:
    search = {"iterations": 7, "rule": "epsilon_greedy", "temperature": 0.5}
    status, reply = server.search(run=run, level=LEVEL, actions=[1], seed=3, **search)
    assert status == 200
    robot = reply["state"]["scene"]["robot"]
    options = NavigationOptions(exits=1)
    expected = describe_navigation(load_solver(DTSN), LEVEL, options, time=1, robot=robot, seed=3, **search)
    assert reply["search"] == json.loads(json.dumps(expected))
    check_search(reply["search"])


@pytest.mark.parametrize("solver", ["dtsn", "qnet"])
def test_following_the_answers_is_the_evaluated_episode(server: Server, solver: str) -> None:
    run, level, actions = f"shipped/navigation-{solver}", easy_level(), []
    while (reply := server.search(run=run, level=level, actions=actions)[1])["search"]:
        actions.append(reply["search"]["action"])
    trained = load_solver(pretrained.FOLDER / f"navigation-{solver}")
    cells = trace_navigation(trained, level, NavigationOptions(exits=1))
    assert reply["state"]["scene"]["path"] == cells.tolist()
    assert reply["state"]["outcome"] == "goal"
    assert reply["state"]["status"].startswith(f"Goal after {len(actions)} steps; the shortest path has ")


def test_collision_and_time_out_end_an_episode(server: Server) -> None:
    outcomes = {}
    for actions in ([0] * 5, [1] * 5):
        for n in range(6):
            status, reply = server.search(level=LEVEL, actions=actions[:n])
            if status == 200 and reply["state"]["outcome"]:
                outcomes[n] = reply["state"]["outcome"]
                assert reply["search"] is None
                assert server.search(level=LEVEL, actions=[*actions[:n], 0])[0] == 422
                break
    assert set(outcomes.values()) == {"collision"}
    level = 2_000_001
    path = server.search(level=level)[1]["state"]["scene"]["path"]
    back_and_forth = [1, 3] * 100  # south of the robot is free
    state = server.search(level=level, actions=back_and_forth)[1]["state"]
    assert (state["outcome"], state["time"], state["scene"]["robot"]) == ("time-out", 200, path[0])


def test_a_run_under_training_shows_its_newest_checkpoint(runs: Path) -> None:
    library, run = Library(runs), runs / "study/dtsn-0"
    first = library.find("study/dtsn-0")
    assert library.find("study/dtsn-0") is first
    newer = run / "checkpoints/step-4000"
    shutil.copytree(DTSN, newer)
    try:
        assert library.find("study/dtsn-0") is not first
    finally:
        shutil.rmtree(newer)
    assert library._load_once.cache_info().maxsize == SOLVERS_KEPT


def test_saved_search_is_checked_and_shown(server: Server, tmp_path: Path) -> None:
    document = describe_navigation(load_solver(DTSN), LEVEL, NavigationOptions(exits=1), iterations=3)
    kind = {"Content_Type": "application/json"}
    status, _, content = server.request("POST", "/api/document", to_json(document).encode(), **kind)
    assert status == 200
    reply = json.loads(content)
    assert reply["search"] == json.loads(to_json(document))
    assert reply["state"]["status"] == f"A saved search: navigation, level {LEVEL}, step 0."
    assert reply["state"]["scene"]["robot"] == document["scene"]["robot"]
    for bad in (b"", b"[]", b"{", b"[" * 100_000, to_json(document).replace('"q"', '"Q"').encode()):
        status, _, content = server.request("POST", "/api/document", bad, **kind)
        assert status == 422
        assert json.loads(content)["error"].startswith("the file: ")
    assert server.request("POST", "/api/document", b" " * (9 << 20), **kind)[0] == 413

    library = Library(documents={"tree.json": document})
    assert [entry["name"] for entry in library.entries()] == ["file/tree.json"]
    assert library.document("file/tree.json") is document


def test_next_level_where_solvers_disagree(server: Server) -> None:
    options = NavigationOptions(exits=1)
    solvers = [load_solver(pretrained.FOLDER / f"navigation-{name}") for name in ("dtsn", "qnet")]
    levels = np.arange(LEVEL + 1, LEVEL + 17)
    success = [[row.success for row in evaluate_navigation(s, levels, options)] for s in solvers]
    differ = [level for level, one, other in zip(levels.tolist(), *success, strict=True) if one != other]
    asked = {"level": LEVEL, "options": {"exits": "1"}}
    question = {side: asked | {"run": f"shipped/navigation-{name}"} for side, name in
                (("first", "dtsn"), ("second", "qnet"))}  # fmt: skip
    kind = {"Content_Type": "application/json"}
    status, _, content = server.request("POST", "/api/disagree", json.dumps(question).encode(), **kind)
    assert status == 200
    assert json.loads(content) == {"level": differ[0] if differ else None, "last": LEVEL + 16}
    question["second"]["run"] = "nowhere"
    assert server.request("POST", "/api/disagree", json.dumps(question).encode(), **kind)[0] == 404
