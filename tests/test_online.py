"""The online experiments: the door-and-key room, one short run of each agent, and the report."""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from dtsn.reproduce.jobs import DONE, Job
from dtsn.reproduce.online.door_key import MOVES, DoorKeyEnv
from dtsn.reproduce.online.report import build_online_report, interval, returns_of, summarise
from dtsn.reproduce.online.run import (
    FIRST_TEST_SEED,
    Cell,
    OnlineCampaign,
    evaluate,
    learn,
    run_campaign,
)
from dtsn.reproduce.online.tasks import AGENTS, EVALUATIONS, TASKS


def way(planes: np.ndarray, start: tuple[int, int], goal: tuple[int, int], key: bool) -> list[int] | None:
    """The shortest path between cells by breadth-first search, or None."""
    size, queue, seen = planes.shape[1], deque([(start, [])]), {start}
    while queue:
        here, moves = queue.popleft()
        if here == goal:
            return moves
        for action, (down, right) in enumerate(MOVES):
            cell = (here[0] + down, here[1] + right)
            inside = all(0 <= x < size for x in cell)
            if inside and cell not in seen and not planes[(0, *cell)] and (key or not planes[(1, *cell)]):
                seen.add(cell)
                queue.append((cell, [*moves, action]))
    return None


def marked(plane: np.ndarray) -> tuple[int, int]:
    row, column = np.argwhere(plane)[0]
    return int(row), int(column)


@pytest.mark.parametrize("seed", range(30))
def test_every_room_is_solved_by_way_of_the_key_alone(seed: int) -> None:
    env = DoorKeyEnv()
    planes, _ = env.reset(seed=seed)
    robot, key, goal = marked(planes[4]), marked(planes[2]), marked(planes[3])
    assert way(planes, robot, goal, key=False) is None
    to_key = way(planes, robot, key, key=False)
    then = way(planes, key, goal, key=True)
    assert to_key
    assert then
    total = 0.0
    for number, action in enumerate([*to_key, *then], 1):
        planes, reward, terminated, truncated, _ = env.step(action)
        total += reward
        assert not truncated
        assert terminated == (number == len(to_key) + len(then))
        assert planes[2].any() == (number < len(to_key))
    assert total == -len(to_key) - len(then)


def test_the_key_is_a_detour_in_most_rooms() -> None:
    longer = 0
    for seed in range(200):
        planes, _ = DoorKeyEnv().reset(seed=seed)
        robot, key, goal = marked(planes[4]), marked(planes[2]), marked(planes[3])
        by_key = len(way(planes, robot, key, key=False)) + len(way(planes, key, goal, key=True))
        assert by_key < DoorKeyEnv().max_steps
        longer += by_key > len(way(planes, robot, goal, key=True))
    assert longer > 100


def test_room_is_a_gymnasium_environment() -> None:
    check_env(DoorKeyEnv(), skip_render_check=True)


@pytest.mark.parametrize("agent", AGENTS)
def test_a_short_run_has_a_whole_curve(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("stable_baselines3")
    monkeypatch.setattr("dtsn.reproduce.online.run.EPISODES", 1)
    found = learn(Cell("door_key", agent, 0), 80)
    assert [point["step"] for point in found["curve"]] == [8 * n for n in range(1, EVALUATIONS + 1)]
    assert all(-40 <= point["return"] < 0 for point in found["curve"])


def test_episodes_side_by_side_are_those_one_by_one() -> None:
    """Against playing them in turn, by an agent whose actions depend on what it sees."""

    class Agent:
        def predict(self, observations: np.ndarray, deterministic: bool) -> tuple[np.ndarray, None]:
            assert deterministic
            return observations.reshape(len(observations), -1).argmax(1) % 4, None

    expected = []
    for episode in range(5):
        env = TASKS["navigation"].make()
        seen, done, total = env.reset(seed=FIRST_TEST_SEED + episode)[0], False, 0.0
        while not done:
            seen, reward, terminated, truncated, _ = env.step(int(seen.reshape(-1).argmax() % 4))
            total, done = total + float(reward), terminated or truncated
        expected.append(total)
    assert evaluate(Agent(), TASKS["navigation"].make, 5) == expected


def test_crashing_never_pays_in_navigation() -> None:
    env = TASKS["navigation"].make()
    env.reset(seed=0)
    total, done = 0.0, False
    while not done:  # straight on, into the wall
        _, reward, done, truncated, _ = env.step(0)
        total += float(reward)
        assert not truncated
    assert total <= -30  # of whoever never arrives


class Pretend:
    """Writes a curve for every job."""

    def run(self, jobs: dict[Cell, Job]):
        for cell, job in jobs.items():
            *_, steps, path = job.arguments
            points = [{"step": int(steps), "return": 10.0 + cell.seed, "cpu_seconds": 60.0}]
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(json.dumps({**cell._asdict(), "curve": points}))
            yield cell, DONE


def test_campaign_goes_on_where_it_stopped_and_reports(tmp_path: Path) -> None:
    campaign = OnlineCampaign(("cartpole",), ("dqn", "dtsn"), 3, 100, tmp_path / "results", tmp_path / "runs")
    ends = run_campaign(campaign, Pretend(), "dtsn reproduce online")
    next(ends)
    next(ends)
    assert len(list(run_campaign(campaign, Pretend(), "again"))) == 4
    assert not list(run_campaign(campaign, Pretend(), "again"))
    with pytest.raises(ValueError, match=r"other settings \(cartpole.steps is 200, not 100\)"):
        run_campaign(dataclasses.replace(campaign, steps=200), Pretend(), "longer")
    summary = summarise(campaign.results)["cartpole"]["dtsn"]
    assert (summary["final_mean"], summary["steps"], summary["seeds"]) == (11.0, 100, 3)
    low, high = summary["final_interval"]
    assert high - 11 == pytest.approx(11 - low) == pytest.approx(4.303 / np.sqrt(3), rel=1e-3)
    pytest.importorskip("matplotlib")
    written = build_online_report(campaign.results, tmp_path / "online.md")
    assert all(path.exists() for path in written)
    assert f"| {TASKS['cartpole'].title} | D-TSN | 11.00 [" in (tmp_path / "online.md").read_text()


def test_interval_of_too_few_seeds() -> None:
    assert interval(np.array([[3.0, 4.0], [2.0, 4.0]])) is None


def test_interval_knows_the_episodes_that_all_seeds_share() -> None:
    levels = np.array([0.0, 10.0, 20.0, 30.0])
    same = np.stack([levels, levels + 0.1, levels - 0.1])  # [seeds, episodes]: seeds hardly differ
    of_seeds, of_both = interval(same.mean(1, keepdims=True)), interval(same)
    assert of_seeds is not None
    assert of_both is not None
    assert of_seeds[1] - of_seeds[0] < 1  # as if other episodes were like these
    assert of_both[1] - of_both[0] == pytest.approx(2 * 3.182 * np.std(levels, ddof=1) / 2, rel=0.02)


def test_rows_with_and_without_single_returns() -> None:
    def run(*points: object) -> dict[str, object]:
        return {"curve": [{"return": 2.0, "returns": returns} for returns in points]}

    assert returns_of([run([1.0, 3.0], [2.0, 2.0])]).shape == (1, 2, 2)
    assert returns_of([run([1.0, 3.0]), run(None)]).tolist() == [[[2.0]], [[2.0]]]


@pytest.mark.parametrize("wrong", [{"tasks": ("go",)}, {"agents": ("ppo",)}, {"seeds": 0}, {"steps": 3}])
def test_settings_are_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        OnlineCampaign(**wrong)
