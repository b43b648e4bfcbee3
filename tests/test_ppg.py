"""Phasic Policy Gradient: its parts against slow oracles, and that it learns, stops and goes on."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dtsn.checkpoint import CheckpointError, checkpoints, latest_checkpoint
from dtsn.config import PPG_CPU, PPGConfig
from dtsn.envs.procgen import FRAME_SHAPE, NUM_ACTIONS, ProcgenOptions, ProcgenPool, Step
from dtsn.experts import ppg
from dtsn.experts.ppg import PhasicPolicyGradient, RewardScale, advantages, train_expert, translated
from dtsn.experts.ppg_policy import ActorCritic, load_expert
from dtsn.reproduce.procgen.budgets import PROCGEN_BUDGETS
from dtsn.storage import RunInUseError

TINY = dataclasses.replace(
    PPG_CPU,
    num_envs=8,
    rollout=8,
    minibatches=2,
    policy_iterations=2,
    latent=16,
    steps=256,
    checkpoint_every=2,
)


class ColourPool:
    """A stand-in for Procgen: the right action is the colour that is lit; an episode is 4 steps."""

    held = 1  # frames, by the latest pool

    def __init__(
        self, options: ProcgenOptions, num_envs: int, *, num_levels: int, seed: int, action_repeat: int
    ) -> None:
        ColourPool.held = action_repeat
        self.rng, self.num_envs, self.elapsed = np.random.default_rng(seed), num_envs, 0

    def reset(self) -> np.ndarray:
        self.right = self.rng.integers(3, size=self.num_envs)
        frames = np.zeros((self.num_envs, *FRAME_SHAPE), np.uint8)
        frames[np.arange(self.num_envs), self.right] = 255
        return frames

    def step(self, actions: np.ndarray) -> Step:
        earned = (actions == self.right).astype(np.float32)
        self.elapsed += 1
        ended = np.full(self.num_envs, self.elapsed % 4 == 0)
        frames = self.reset()
        nobody, level = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, np.int64)
        return Step(frames, frames, earned, ended, nobody, ended & (earned > 0), level)


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppg, "ProcgenPool", ColourPool)


def test_advantages_are_discounted_sums_of_errors() -> None:
    rng = np.random.default_rng(0)
    rewards, values, ended = rng.normal(size=(9, 3)), rng.normal(size=(10, 3)), rng.random((9, 3)) < 0.3
    gamma, lam = 0.9, 0.8
    expected = np.zeros((9, 3))
    for env in range(3):
        for start in range(9):
            weight = 1.0
            for t in range(start, 9):
                following = 0.0 if ended[t, env] else values[t + 1, env]
                expected[start, env] += weight * (rewards[t, env] + gamma * following - values[t, env])
                if ended[t, env]:
                    break
                weight *= gamma * lam
    np.testing.assert_allclose(advantages(rewards, values, ended, gamma, lam), expected)


def test_reward_scale_is_the_deviation_of_all_returns_so_far() -> None:
    rng = np.random.default_rng(0)
    rewards, ended = 3 * rng.normal(size=(40, 4)), rng.random((40, 4)) < 0.2
    returns, running = [], np.zeros(4)
    for reward, end in zip(rewards, ended, strict=True):
        running = reward + 0.9 * running
        returns.append(running)
        running = running * ~end
    scale = RewardScale(4, 0.9)
    scale(rewards[:10], ended[:10])
    scaled = scale(rewards[10:], ended[10:])
    np.testing.assert_allclose(scaled, rewards[10:] / np.std(returns), rtol=1e-6)


def test_frames_are_shifted_and_their_edges_repeated() -> None:
    frames = torch.arange(40 * 3 * 6 * 7).reshape(40, 3, 6, 7).to(torch.uint8)
    shifted = translated(frames, 2, torch.Generator().manual_seed(1)).numpy()
    padded = np.pad(frames.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)), mode="edge")
    found = set()
    for row in range(len(frames)):
        ways = [
            (down, right)
            for down in range(5)
            for right in range(5)
            if np.array_equal(shifted[row], padded[row, :, down : down + 6, right : right + 7])
        ]
        assert len(ways) == 1
        found |= set(ways)
    assert len(found) > 12  # of 25
    assert translated(frames, 0, torch.Generator()) is frames


def test_an_action_that_changes_nothing_is_penalised(monkeypatch: pytest.MonkeyPatch) -> None:
    class StillPool(ColourPool):
        """Nothing is ever earned; the frame of slots 0 to 3 never changes, nor would an end hide that."""

        def reset(self) -> np.ndarray:
            frames = super().reset()
            frames[:4] = 7
            return frames

        def step(self, actions: np.ndarray) -> Step:
            return super().step(actions)._replace(rewards=np.zeros(self.num_envs, np.float32))

    monkeypatch.setattr(ppg, "ProcgenPool", StillPool)
    seen: list[np.ndarray] = []
    monkeypatch.setattr(ppg, "advantages", lambda rewards, *others: seen.append(rewards) or rewards)
    next(PhasicPolicyGradient(dataclasses.replace(TINY, still_penalty=0.25)).run())
    np.testing.assert_array_equal(seen[0][:, :4], -0.25)
    assert (seen[0][:, 4:] == -0.25).mean() < 0.6  # one colour of three is lit again
    next(PhasicPolicyGradient(TINY).run())
    assert not seen[1].any()


@pytest.mark.parametrize("shared", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_it_learns_what_the_frame_says(colours: None, shared: bool) -> None:
    config = dataclasses.replace(
        TINY,
        num_envs=32,
        steps=10 * 256,
        minibatches=4,
        shared=shared,
        learning_rate=3e-3,
        precision="float32",
    )
    rows = list(PhasicPolicyGradient(config).run())
    assert rows[0]["return"] < 1  # of 4; one action in 15 is right
    assert rows[-1]["return"] > 3
    assert rows[-1]["success"] > 0.7
    assert "clone" in rows[1]
    assert "clone" not in rows[0]  # an auxiliary phase after every second iteration


def test_the_auxiliary_phase_teaches_values_and_keeps_the_policy(colours: None) -> None:
    config = dataclasses.replace(TINY, num_envs=16, steps=256, policy_iterations=2, auxiliary_epochs=0)
    learner = PhasicPolicyGradient(config)
    list(learner.run())
    frames = learner._frames.flatten(0, 1)
    with torch.no_grad():
        before, values = learner.network(frames)
    targets = learner._targets.flatten()
    learner._filled = 2
    learner.config = dataclasses.replace(config, auxiliary_epochs=20)
    learner._auxiliary_phase(torch.Generator().manual_seed(0))
    with torch.no_grad():
        after, taught = learner.network(frames)
    assert (taught - targets).square().mean() < 0.9 * (values - targets).square().mean()
    assert (before.exp() * (before - after)).sum(1).mean() < 0.01


def test_value_errors_reach_a_shared_encoder_in_auxiliary_phases_only() -> None:
    network = ActorCritic(TINY)
    frames = torch.randint(0, 256, (4, *FRAME_SHAPE), dtype=torch.uint8)
    for detach, reaches in ((True, False), (False, True)):
        network.zero_grad()
        network(frames, detach=detach)[1].sum().backward()
        assert any(p.grad is not None for p in network.policy_encoder.parameters()) == reaches


def test_without_auxiliary_phases_values_teach_the_shared_encoder_at_once(
    colours: None, tmp_path: Path
) -> None:
    config = dataclasses.replace(TINY, auxiliary_epochs=0, detach_values=False,
                                 entropy_weight=0.0)  # fmt: skip
    learner = PhasicPolicyGradient(config)
    gains = torch.zeros(64)  # so that only the values have anything to learn
    learner._policy_phase(
        ppg.Rollout(
            torch.randint(0, 256, (64, *FRAME_SHAPE), dtype=torch.uint8),
            torch.zeros(64, dtype=torch.int64), gains, gains, torch.ones(64),
        ),
        torch.Generator().manual_seed(0),
    )  # fmt: skip
    fresh = PhasicPolicyGradient(config)
    moved = zip(
        learner.network.policy_encoder.parameters(), fresh.network.policy_encoder.parameters(), strict=True
    )
    assert any((mine != theirs).any() for mine, theirs in moved)
    rows = list(fresh.run())
    assert all("clone" not in row for row in rows)
    again = PhasicPolicyGradient(config)
    again.restore(fresh.save(tmp_path))  # the second optimiser has nothing to save
    assert again.iteration == 4


def test_each_phase_has_its_own_optimiser_and_both_are_saved(colours: None, tmp_path: Path) -> None:
    learner = PhasicPolicyGradient(TINY)
    for _ in learner.run():
        pass
    again = PhasicPolicyGradient(TINY)
    again.restore(learner.save(tmp_path))
    iterations = TINY.steps // TINY.batch
    policy_steps = iterations * TINY.policy_epochs * TINY.minibatches
    auxiliary_steps = iterations * TINY.auxiliary_epochs * TINY.minibatches
    for each in (learner, again):
        steps = {
            name: {int(state["step"]) for state in optimizer.state.values()}
            for name, optimizer in each.optimizers.items()
        }
        assert steps == {"optimizer": {policy_steps}, "auxiliary_optimizer": {auxiliary_steps}}

    other = PhasicPolicyGradient(dataclasses.replace(TINY, auxiliary_learning_rate=1e-3))
    rates = {name: each.param_groups[0]["lr"] for name, each in other.optimizers.items()}
    assert rates == {"optimizer": TINY.learning_rate, "auxiliary_optimizer": 1e-3}

    del learner._tensors["auxiliary_optimizer"]
    with pytest.raises(CheckpointError, match="auxiliary_optimizer"):
        again.restore(learner.save(tmp_path / "earlier"))


def test_a_run_stops_saves_and_goes_on(colours: None, tmp_path: Path) -> None:
    run = tmp_path / "run"
    steps = train_expert(run, TINY)
    for _ in range(3):
        next(steps)
    steps.close()  # type: ignore[attr-defined]
    assert [path.name for path in checkpoints(run / "checkpoints")] == ["step-128", "step-192"]
    with pytest.raises(FileExistsError, match="already has a training run"):
        train_expert(run, TINY)
    with pytest.raises(CheckpointError, match="learning_rate"):
        train_expert(run, dataclasses.replace(TINY, learning_rate=1.0), resume=True)
    with (run / "metrics.jsonl").open("a") as log:
        log.write('{"step": 999}\n{"st')  # made after the checkpoint, or half
    rows = list(train_expert(run, dataclasses.replace(TINY, steps=320), resume=True))
    assert [row["step"] for row in rows] == [256, 320]
    logged = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert logged == [64, 128, 192, 256, 320]
    expert = load_expert(run)
    assert (expert.step, expert.config.game) == (320, "coinrun")


def test_a_run_folder_belongs_to_one_run(colours: None, tmp_path: Path) -> None:
    first = train_expert(tmp_path, TINY)
    next(first)
    with pytest.raises(RunInUseError, match="is in use by process"):
        train_expert(tmp_path, TINY, resume=True)
    first.close()
    for _ in train_expert(tmp_path, TINY, resume=True):
        pass
    assert not (tmp_path / ".lock").exists()


def test_an_interrupt_within_an_iteration_saves_the_last_whole_one(
    colours: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = train_expert(tmp_path, TINY)
    next(steps)
    step, calls = ColourPool.step, iter(range(100))

    def interrupted(self: ColourPool, actions: np.ndarray) -> Step:
        if next(calls) == 5:
            raise KeyboardInterrupt
        return step(self, actions)

    monkeypatch.setattr(ColourPool, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    newest = latest_checkpoint(tmp_path / "checkpoints")
    assert newest is not None
    assert newest.name == "step-64"


def test_a_seed_determines_a_run(colours: None) -> None:
    one, two = (list(PhasicPolicyGradient(TINY).run()) for _ in range(2))
    assert [row["policy"] for row in one] == [row["policy"] for row in two]
    other = list(PhasicPolicyGradient(dataclasses.replace(TINY, seed=1)).run())
    assert one[0]["policy"] != other[0]["policy"]


def test_an_experts_action_depends_on_its_episode_and_step_alone(colours: None, tmp_path: Path) -> None:
    list(train_expert(tmp_path, TINY))
    policy = load_expert(tmp_path).policy(seed=3, at_once=8)
    frames = np.random.default_rng(0).integers(0, 256, (5, *FRAME_SHAPE), dtype=np.uint8)
    numbers, steps = np.arange(5), np.array([7, 0, 3, 3, 9])
    together = np.asarray(policy(frames, numbers, steps))
    alone = [np.asarray(policy(frames[i : i + 1], numbers[i : i + 1], steps[i : i + 1]))[0] for i in range(5)]
    assert together.tolist() == alone
    same = np.repeat(frames[:1], 4000, axis=0)
    drawn = np.asarray(
        load_expert(tmp_path).policy(seed=3, at_once=4000)(same, np.arange(4000), np.zeros(4000, int))
    )
    expected = load_expert(tmp_path).probabilities(frames[:1])[0]
    np.testing.assert_allclose(np.bincount(drawn, minlength=NUM_ACTIONS) / 4000, expected, atol=0.03)


@pytest.mark.parametrize("claim", [{"latent": 10**6}, {"latent": "a"}, {"encoder": "mlp"}, {"seed": -1}])
def test_an_experts_checkpoint_that_lies(claim: dict[str, object], colours: None, tmp_path: Path) -> None:
    learner = PhasicPolicyGradient(TINY)
    learner._state["config"] |= claim
    path = learner.save(tmp_path)
    with pytest.raises(CheckpointError, match=str(path)):
        load_expert(path)


@pytest.mark.parametrize(
    "change", [{"iteration": "a"}, {"iteration": 10**30}, {"reward_scale": [1, 2]}, {"reward_scale": None}]
)
def test_resume_with_a_bad_state(change: dict[str, object], colours: None, tmp_path: Path) -> None:
    learner = PhasicPolicyGradient(TINY)
    learner._state |= change
    with pytest.raises(CheckpointError, match=next(iter(change))):
        PhasicPolicyGradient(TINY).restore(learner.save(tmp_path))


def test_an_expert_holds_its_actions_as_it_learned_to(colours: None, tmp_path: Path) -> None:
    rows = list(train_expert(tmp_path, dataclasses.replace(TINY, action_repeat=3, steps=3 * TINY.steps)))
    assert rows[-1]["step"] == 3 * TINY.steps
    assert ColourPool.held == 3
    policy = load_expert(tmp_path).policy(seed=3, at_once=2)
    rng, played = np.random.default_rng(0), []
    for step in range(60):  # the second episode is a frame behind
        frames = rng.integers(0, 256, (2, *FRAME_SHAPE), dtype=np.uint8)
        there = slice(0, 2 if step else 1)
        actions = policy(frames[there], np.arange(2)[there], np.array([step, step - 1])[there])
        played.append([*np.asarray(actions), -1][:2])
    first, second = np.array(played)[:, 0].reshape(-1, 3), np.array(played)[1:58, 1].reshape(-1, 3)
    for holding in (first, second):
        assert (holding == holding[:, :1]).all()
        assert len(set(holding[:, 0])) > 3


def test_procgen_itself_is_learned_from(tmp_path: Path) -> None:
    assert ppg.ProcgenPool is ProcgenPool
    rows = list(train_expert(tmp_path, dataclasses.replace(TINY, game="leaper", steps=128)))
    assert [row["step"] for row in rows] == [64, 128]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"game": "conrun"}, "did you mean 'coinrun'"),
        ({"game": "bigfish", "mode": "memory"}, "mode must be one of easy, hard for bigfish, got 'memory'"),
        ({"num_levels": 10**10}, "num_levels must be 1 to .*, got 10000000000"),
    ],
)
def test_games_and_modes_are_checked(tmp_path: Path, change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        train_expert(tmp_path / "run", dataclasses.replace(TINY, **change))  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("change", [{"steps": 0}, {"minibatches": 3}, {"discount": 2.0}, {"encoder": "grid"},
                                    {"action_repeat": 0}, {"auxiliary_learning_rate": 0.0},
                                    {"translate": -1}, {"still_penalty": -0.1}, {"detach_values": False},
                                    {"learning_rate": 0.0}, {"clip": -1.0}, {"seed": -1}])  # fmt: skip
def test_settings_are_checked(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        PPGConfig(**change)  # type: ignore[arg-type]


def test_other_checkpoints_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither a checkpoint nor a run folder"):
        load_expert(tmp_path)
    shipped = Path(ppg.__file__).parents[1] / "pretrained" / "navigation-qnet"
    with pytest.raises(CheckpointError, match="must be an expert's checkpoint"):
        load_expert(shipped)


@pytest.mark.slow
@pytest.mark.parametrize("game", ["coinrun", "starpilot", "bigfish"])
def test_the_cpu_budget_beats_random(game: str, tmp_path: Path) -> None:
    """Minutes each, bigfish 40: mean returns on 200 unseen levels differ by three standard errors."""
    from dtsn.envs.procgen import SPLITS, play_levels
    from dtsn.experts.collect import random_policy

    torch.set_num_threads(1)
    list(train_expert(tmp_path, PROCGEN_BUDGETS["cpu"].expert_of(game)))
    first = SPLITS["validation"][0]
    returns = [
        np.array(
            [
                played.rewards.sum()
                for played in play_levels(
                    ProcgenOptions(game), enumerate(range(first, first + 200)), policy, keep_frames=False
                )
            ]
        )
        for policy in (load_expert(tmp_path).policy(0, 64), random_policy(0))
    ]
    error = np.sqrt(sum(values.var() / len(values) for values in returns))
    assert returns[0].mean() - returns[1].mean() > 3 * error
