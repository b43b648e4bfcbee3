"""Procgen: 16 games whose levels are generated from seeds, played through EnvPool (the extra dtsn[procgen]).

`ProcgenPool` plays many episodes side by side without end, on levels drawn from a split: for learning.
`play_levels` plays exactly one episode on each of the given levels: for data sets and tests.
`ProcgenEnv` is one game as a Gymnasium environment.

An episode is a function of its level and its actions alone. Frames are bytes [3, 64, 64]. Shapes: N slots.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import ArrayLike

from dtsn.arrays import Bools, Bytes, Float32s, Ints
from dtsn.errors import UserError
from dtsn.spelling import did_you_mean

NUM_ACTIONS = 15
FRAME_SHAPE = (3, 64, 64)
# The keys that an action presses.
ACTION_NAMES = (
    *("LEFT+DOWN", "LEFT", "LEFT+UP", "DOWN", "NOOP", "UP", "RIGHT+DOWN", "RIGHT", "RIGHT+UP"),
    *("D", "A", "W", "S", "Q", "E"),
)

# Half-open ranges of level seeds; disjoint, so no level is both trained and tested on.
SPLITS = {
    "train": (0, 10**9),
    "validation": (10**9, 15 * 10**8),
    "test": (15 * 10**8, 2 * 10**9),
}
LEVELS_END = 2**31 - 1  # a level seed is an int32

# Every game has the modes easy and hard; some have more.
GAMES: dict[str, tuple[str, ...]] = {
    game: ("easy", "hard", *others.split())
    for game, others in {
        "bigfish": "",
        "bossfight": "",
        "caveflyer": "exploration memory",
        "chaser": "extreme",
        "climber": "exploration",
        "coinrun": "exploration",
        "dodgeball": "extreme memory",
        "fruitbot": "",
        "heist": "exploration memory",
        "jumper": "exploration memory",
        "leaper": "exploration extreme",
        "maze": "exploration memory",
        "miner": "memory",
        "ninja": "exploration",
        "plunder": "",
        "starpilot": "extreme",
    }.items()
}

INSTALL = "run: pip install 'dtsn[procgen]'"
# EnvPool is linked against these, which pip puts where no linker looks. Later ones need earlier ones.
QT_LIBRARIES = (
    "libicudata.so.56",
    "libicuuc.so.56",
    "libicui18n.so.56",
    "libQt5Core.so.5",
    "libQt5Gui.so.5",
)


@dataclass(frozen=True)
class ProcgenOptions:
    """Which game, and how hard. The paper's data are of mode hard; easy is what a CPU can learn."""

    game: str = "coinrun"
    mode: str = "easy"

    def __post_init__(self) -> None:
        if self.game not in GAMES:
            hint = did_you_mean(self.game, GAMES)
            raise UserError(f"game must be one of {', '.join(GAMES)}, got {self.game!r}{hint}")
        if self.mode not in GAMES[self.game]:
            raise UserError(
                f"mode must be one of {', '.join(GAMES[self.game])} for {self.game}, got {self.mode!r}"
            )

    @property
    def envpool_id(self) -> str:
        """The game's name in EnvPool, such as CoinrunEasy-v0."""
        return f"{self.game.capitalize()}{self.mode.capitalize()}-v0"


def split_range(split: str, num_levels: int = 0) -> tuple[int, int]:
    """Return the level seeds first … end of a split, or of its first `num_levels` (0: all of them)."""
    if split not in SPLITS:
        raise UserError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    first, end = SPLITS[split]
    if not 0 <= num_levels <= end - first:
        raise UserError(f"num_levels must be 1 to {end - first}, or 0 for all levels, got {num_levels}")
    return first, first + num_levels if num_levels else end


class Step(NamedTuple):
    """What a step of all slots gave."""

    observations: (
        Bytes  # [N, 3, 64, 64] what to act on next: the first frame of a new episode where one ended
    )
    last: Bytes  # [N, 3, 64, 64] what the step led to: the true last frame where an episode ended
    rewards: Float32s  # [N]
    terminated: Bools  # [N]
    truncated: Bools  # [N] out of time
    complete: Bools  # [N] the level was completed by this step
    levels: Ints  # [N] the level that this step was played on


class ProcgenPool:
    """Episodes without end in `num_envs` slots; their levels are drawn from a split by `seed`."""

    def __init__(
        self,
        options: ProcgenOptions,
        num_envs: int,
        *,
        split: str = "train",
        num_levels: int = 0,
        seed: int = 0,
        threads: int = 1,
        action_repeat: int = 1,
    ) -> None:
        for name, value in (("num_envs", num_envs), ("threads", threads), ("action_repeat", action_repeat)):
            if value < 1:
                raise UserError(f"{name} must be at least 1, got {value}")
        if seed < 0:
            raise UserError(f"seed must not be negative, got {seed}")
        first, end = split_range(split, num_levels)
        # EnvPool seeds slot i by seed + i: mixed, lest neighbouring seeds share most of their levels.
        mixed = int(np.random.SeedSequence(seed).generate_state(1)[0]) >> 2
        self.num_envs, self.options, self.action_repeat = num_envs, options, action_repeat
        self._pool = _make_pool(options, first, end - first, num_envs, mixed, threads)

    def reset(self) -> Bytes:
        """Return the first frames [N, 3, 64, 64]; only once, since a pool goes on by itself."""
        frames, info = self._pool.reset()
        self._levels = info["level_seed"].astype(np.int64)
        return frames  # type: ignore[no-any-return]

    def step(self, actions: ArrayLike) -> Step:
        """Play an action [N] in every slot; where an episode ends, the next one begins at once.

        An action is held for `action_repeat` frames, or until its episode ends; rewards add up.
        """
        actions = np.asarray(actions, np.int32)
        last, rewards, terminated, truncated, info = self._pool.step(actions)
        complete = info["prev_level_complete"].astype(bool)
        for _ in range(1, self.action_repeat):
            going = np.flatnonzero(~(terminated | truncated)).astype(np.int32)
            if not len(going):
                break
            frames, gained, terminated[going], truncated[going], info = self._pool.step(actions[going], going)
            last[going] = frames
            rewards[going] += gained
            complete[going] = info["prev_level_complete"]
        levels = self._levels
        ended = np.flatnonzero(terminated | truncated).astype(np.int32)
        following = last
        if len(ended):  # EnvPool resets a slot by its next step, whatever its action
            following = last.copy()
            following[ended], _, _, _, info = self._pool.step(actions[ended], ended)
            self._levels = levels.copy()
            self._levels[ended] = info["level_seed"]
        return Step(following, last, rewards.astype(np.float32), terminated, truncated, complete, levels)


class Played(NamedTuple):
    """One episode of T steps."""

    number: int  # as it was given with the level
    level: int
    observations: Bytes  # [T + 1, 3, 64, 64]; empty unless frames were to be kept
    actions: Ints  # [T]
    rewards: Float32s  # [T]
    terminated: bool  # False when it ran out of time
    complete: bool  # the level was completed


# Frames [N, 3, 64, 64], the numbers [N] of their episodes, and the steps [N] played there -> actions [N].
Policy = Callable[[Bytes, Ints, Ints], ArrayLike]


@dataclass
class _Play:
    """An episode that is going on."""

    number: int
    level: int
    game: Any
    frame: Bytes
    frames: list[Bytes] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)


def play_levels(
    options: ProcgenOptions,
    levels: Iterable[tuple[int, int]],
    policy: Policy,
    *,
    at_once: int = 64,
    keep_frames: bool = True,
    max_frames: int = 40_000,
) -> Iterator[Played]:
    """Play an episode on each of the levels, pairs of (number, level); yield episodes as they end.

    The policy is asked about up to `at_once` episodes at a time. What it sees of an episode does not depend
    on the others, so if it draws by (number, step) alone, neither does what it plays.

    No more than `max_frames` (40,000 take 0.5 GB) are held in memory, or one episode's if it is longer:
    beyond that, the youngest episodes are dropped and begun again later.
    """
    if at_once < 1 or max_frames < 1:
        raise UserError(f"at_once and max_frames must be at least 1, got {at_once} and {max_frames}")
    waiting, dropped = iter(levels), deque[tuple[int, int]]()
    playing: list[_Play] = []
    held = 0
    while True:
        while len(playing) < at_once and (not playing or held < max_frames // 2):
            following = dropped.popleft() if dropped else next(waiting, None)
            if following is None:
                break
            playing.append(_begin(options, *following))
        if not playing:
            return
        frames = np.concatenate([play.frame for play in playing])
        steps = np.array([len(play.actions) for play in playing])
        actions = np.asarray(policy(frames, np.array([play.number for play in playing]), steps), np.int32)
        # Every game has a thread of its own: to wait for each in turn would take twice as long as for all.
        for play, action in zip(playing, actions, strict=True):
            play.game.send(action[None])
        going, ended = [], []
        for play, action in zip(playing, actions, strict=True):
            play.actions.append(int(action))
            if keep_frames:
                play.frames.append(play.frame)
                held += 1
            play.frame, rewards, terminated, truncated, info = play.game.recv()
            play.rewards.append(float(rewards[0]))
            if terminated[0] or truncated[0]:
                held -= len(play.frames)
                ended.append(_end(play, keep_frames, bool(terminated[0]), info))
            else:
                going.append(play)
        playing = going
        yield from ended
        while held > max_frames and len(playing) > 1:
            youngest = min(playing, key=lambda play: len(play.actions))
            playing.remove(youngest)
            held -= len(youngest.frames)
            dropped.append((youngest.number, youngest.level))


def _begin(options: ProcgenOptions, number: int, level: int) -> _Play:
    if not 0 <= level < LEVELS_END:
        raise UserError(f"level must be an integer from 0 to {LEVELS_END - 1}, got {level}")
    game = _make_pool(options, level, 1, num_envs=1, seed=0, threads=1)
    return _Play(number, level, game, game.reset()[0])


def _end(play: _Play, keep_frames: bool, terminated: bool, info: dict[str, Any]) -> Played:
    frames = [*play.frames, play.frame] if keep_frames else [play.frame[:0]]
    return Played(
        play.number,
        play.level,
        np.concatenate(frames),
        np.array(play.actions, np.int64),
        np.array(play.rewards, np.float32),
        terminated,
        bool(info["prev_level_complete"][0]),
    )


class ProcgenEnv(gym.Env):  # type: ignore[misc]
    """One episode at a time; `info` holds its level, and at the end whether it was completed.

    A level is drawn from the split by `np_random`, or given as `reset(options={"level": 123})`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012 (gymnasium's convention)

    def __init__(
        self, game: str = "coinrun", mode: str = "easy", split: str = "train", render_mode: str | None = None
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise UserError(f"render_mode must be None or 'rgb_array', got {render_mode!r}")
        self.options, self.render_mode = ProcgenOptions(game, mode), render_mode
        self._range = split_range(split)
        self.observation_space = gym.spaces.Box(0, 255, FRAME_SHAPE, np.uint8)
        self.action_space = gym.spaces.Discrete(NUM_ACTIONS)
        self._play: _Play | None = None
        self._shown: Bytes | None = None  # [3, 64, 64]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Bytes, dict[str, Any]]:
        """Start a level."""
        super().reset(seed=seed)
        level = (options or {}).get("level")
        self._play = _begin(
            self.options, 0, int(self.np_random.integers(*self._range) if level is None else level)
        )
        self._shown = self._play.frame[0]
        return self._shown, {"level": self._play.level}

    def step(self, action: int) -> tuple[Bytes, float, bool, bool, dict[str, Any]]:
        """Play an action."""
        play = self._play
        if play is None:
            raise gym.error.ResetNeeded("call reset() first, and again after an episode has ended")
        play.frame, rewards, terminated, truncated, info = play.game.step(np.array([action], np.int32))
        if terminated[0] or truncated[0]:
            self._play = None
        known = {"level": play.level, "complete": bool(info["prev_level_complete"][0])}
        self._shown = play.frame[0]
        return self._shown, float(rewards[0]), bool(terminated[0]), bool(truncated[0]), known

    def render(self) -> Bytes | None:
        """Return the frame as a picture [64, 64, 3]."""
        if self.render_mode is None or self._shown is None:
            return None
        return self._shown.transpose(1, 2, 0)


def _make_pool(
    options: ProcgenOptions, first: int, count: int, num_envs: int, seed: int, threads: int
) -> Any:
    """Make an EnvPool on the levels first … first + count."""
    return load_envpool().make_gymnasium(
        options.envpool_id,
        num_envs=num_envs,
        num_threads=threads,
        seed=seed,
        start_level=first,
        num_levels=count,
    )


_envpool: Any = None


def load_envpool() -> Any:
    """Load the module `envpool`, with the libraries that its Procgen needs."""
    global _envpool
    if _envpool is None:
        _load_qt()
        try:
            _envpool = importlib.import_module("envpool")
        except ImportError as error:
            raise ImportError(
                f"Procgen needs EnvPool, which cannot be imported ({error}); {INSTALL}"
            ) from error
    return _envpool


def _load_qt() -> None:
    try:
        ctypes.CDLL("libGL.so.1", ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ImportError(
            "Procgen needs the system library libGL.so.1; run: apt-get install libgl1"
        ) from error
    package = importlib.util.find_spec("PyQt5")
    folders = [
        Path(place) / "Qt5" / "lib" for place in (package and package.submodule_search_locations) or ()
    ]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        raise ImportError(f"Procgen needs Qt 5 (PyQt5-Qt5), which is not installed; {INSTALL}")
    for name in QT_LIBRARIES:
        try:
            ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise ImportError(f"Procgen needs Qt 5, which cannot be loaded ({error}); {INSTALL}") from error
