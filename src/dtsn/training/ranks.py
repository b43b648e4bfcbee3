"""The processes that train one run together, as ``torchrun`` starts them.

Every process sees the whole batch of a step and works on its rows; gradients and metrics are means over the
whole batch, so that all have the same weights and come to the same decisions. The first one writes.
"""

from __future__ import annotations

import inspect
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dtsn.batch import Batch, Part
from dtsn.errors import UserError
from dtsn.solvers.losses import LossTerms
from dtsn.solvers.solver import Solver

STARTED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells a process
# The option that says whether every step sends the buffers, by the version of torch.
SYNC_BUFFERS = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel).parameters
)
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class PeerError(UserError):
    """Another process of the run has ended, so that this one cannot go on."""


class Ranks:
    """This process among those that train a run together; by default it is the only one.

    Use :func:`joined` to be one of several.
    """

    def __init__(self, rank: int = 0, count: int = 1, device: str = "cpu") -> None:
        self.rank, self.count, self.device = rank, count, device
        self.stopping = False  # all have agreed to stop
        self._asked = False  # somebody asked this process to stop
        self._interruptible = False

    @property
    def first(self) -> bool:
        """Whether this process writes and speaks."""
        return self.rank == 0

    def part(self, rows: int) -> Part:
        """Return the rows of this process; numbers of rows differ by one at most."""
        if rows < self.count:
            raise UserError(f"batch_size must be at least {self.count}, a row for each process, got {rows}")
        return Part(rows * self.rank // self.count, rows * (self.rank + 1) // self.count, rows)

    def mean(self, values: Tensor, share: float) -> Tensor:
        """Average values ``[n]`` over all processes, each with its share; they also agree on stopping."""
        told = torch.cat([values * share, values.new_tensor([float(self._asked)])])
        with _peers():
            dist.all_reduce(told)
        self.stopping = bool(told[-1] > 0)
        return told[:-1]

    def from_first(self, content: bytes) -> bytes:
        """Broadcast what the first process has."""
        size = torch.tensor(len(content), device=self.device)
        with _peers():
            dist.broadcast(size, 0)
            told = torch.empty(int(size), dtype=torch.uint8)
            if self.first:
                told = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            told = told.to(self.device)
            dist.broadcast(told, 0)
        return told.cpu().numpy().tobytes()

    def wait(self) -> None:
        """Wait until all processes are here."""
        self.from_first(b"here")

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal interrupt the block, in which no other process is waited for."""
        if self._asked:
            raise KeyboardInterrupt
        self._interruptible = True
        try:
            yield
        finally:
            self._interruptible = False

    def hold_signals(self) -> None:
        """Let a signal ask all processes to stop after the step, from now on.

        One that left at once would leave the others waiting, and the first could not save in peace.
        """

        def ask(number: int, frame: Any) -> None:
            self._asked = True
            if self._interruptible:
                raise KeyboardInterrupt

        if threading.current_thread() is threading.main_thread():
            for each in SIGNALS:
                signal.signal(each, ask)


class ParallelLoss:
    """A solver's loss and its gradient as means over a batch whose rows several processes share."""

    def __init__(self, solver: Solver, ranks: Ranks) -> None:
        self.ranks = ranks
        self._solver = solver
        self._wrapped: nn.Module | None = None

    def backward(self, batch: Batch, **settings: Any) -> dict[str, float]:
        """Add the gradient to the parameters; the loss and its terms, the same in all processes."""
        part = self.ranks.part(len(batch))
        share = (part.end - part.first) / part.total
        rows = batch.part(part)
        if self._wrapped is None:
            self._wrapped = _wrap(self._solver, rows, settings)
        with _peers():
            loss: LossTerms = self._wrapped(rows, part=part, **settings)
            (loss.total * (share * self.ranks.count)).backward()  # type: ignore[no-untyped-call]
        means = loss.means()
        values = torch.tensor(list(means.values()), dtype=torch.float64, device=self.ranks.device)
        return dict(zip(means, self.ranks.mean(values, share).tolist(), strict=True))


def _wrap(solver: Solver, rows: Batch, settings: dict[str, Any]) -> nn.Module:
    """Return the loss with gradients that are means over all processes.

    A head without a loss gets no gradient, which the wrapper must know beforehand: one step tells, since a
    larger T only uses the same modules more often. Buffers are constants.
    """
    state = settings["generator"].get_state()
    weights = [weight for weight in solver.parameters() if weight.requires_grad]
    gradients = torch.autograd.grad(solver.loss(rows, **settings).total, weights, allow_unused=True)
    settings["generator"].set_state(state)
    options: dict[str, Any] = {SYNC_BUFFERS: False}
    unused = any(each is None for each in gradients)
    with _peers():
        return DistributedDataParallel(_Loss(solver), find_unused_parameters=unused, **options)


class _Loss(nn.Module):
    """A solver whose forward is its loss: only what is called is seen by whoever wraps a module."""

    def __init__(self, solver: Solver) -> None:
        super().__init__()
        self.solver = solver

    def forward(self, batch: Batch, **settings: Any) -> LossTerms:
        """Return the loss of the rows."""
        return self.solver.loss(batch, **settings)


def are_several() -> bool:
    """Tell whether ``torchrun``, or whoever else sets its variables, started more than one process."""
    return all(name in os.environ for name in STARTED) and int(os.environ["WORLD_SIZE"]) > 1


def was_restarted() -> bool:
    """Tell whether ``torchrun --max-restarts`` has started the processes again after one of them failed."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """Train together with the processes that ``torchrun`` started, if it did.

    Args:
        device: cpu, by gloo, or cuda, by NCCL: then each process takes the GPU of its number.
    """
    if not are_several():
        yield Ranks(device=device)
        return
    if device not in ("cpu", "cuda"):
        raise UserError(f"device must be cpu or cuda where several processes train, got {device!r}")
    if device == "cuda":
        local, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= gpus:
            raise UserError(f"processes of a machine must be at most its GPUs, {gpus}, got more")
        device = f"cuda:{local}"
        torch.cuda.set_device(local)
    ranks = Ranks(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), device)
    with _peers():
        dist.init_process_group("gloo" if device == "cpu" else "nccl")
    ranks.hold_signals()
    yield ranks
    dist.destroy_process_group()  # not after an error: it might wait for those who are gone


@contextmanager
def _peers() -> Iterator[None]:
    """Tell that another process is gone from other errors: the backends raise plain ones."""
    try:
        yield
    except RuntimeError as error:
        lost = isinstance(error, dist.DistError) or any(name in str(error) for name in ("gloo", "NCCL"))
        if not lost:
            raise
        raise PeerError(
            "another process of this run has ended (its own message says why): resume the run to go on"
        ) from error
