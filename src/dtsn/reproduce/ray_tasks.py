"""Jobs of a campaign as tasks of a Ray cluster.

A task starts the job's program on its node, in the folder that the campaign was started in. So every node
needs this folder, under the same name (a shared one), and dtsn in the Python that Ray runs there.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dtsn.reproduce.jobs import POLL_SECONDS, Job, Name, outcome, start

CANCEL_SECONDS = 20.0  # for a job to end by itself
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


@dataclass(frozen=True)
class RayTasks:
    """Tasks of one CPU each on the cluster at ``address``, or on a Ray of this machine alone."""

    address: str | None = None
    cpus: int = 2  # of a Ray of this machine
    gpus: int = 0  # of each task

    def __post_init__(self) -> None:
        _ray()  # an error now rather than after the preparations

    def run(self, jobs: Mapping[Name, Job]) -> Generator[tuple[Name, str], None, None]:
        """Run jobs; yields (name, ``DONE`` or what went wrong) as they end.

        Ray repeats a task whose node has failed; the job then resumes.
        """
        if not jobs:
            return
        ray = _ray()
        ours = not ray.is_initialized()
        if ours:
            self._connect(ray)
        task = ray.remote(run_job).options(num_cpus=1, num_gpus=self.gpus)
        folder = Path.cwd()
        names = {task.remote(replace(job, log=folder / job.log), folder): name for name, job in jobs.items()}
        waiting = list(names)
        try:
            while waiting:
                ready, waiting = ray.wait(waiting, timeout=POLL_SECONDS)
                for each in ready:
                    yield names[each], _outcome(ray, each, jobs[names[each]])
        finally:
            for each in waiting:
                ray.cancel(each)
            if waiting:
                ray.wait(waiting, num_returns=len(waiting), timeout=2 * CANCEL_SECONDS)
            if ours:
                ray.shutdown()

    def _connect(self, ray: Any) -> None:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        local = {"num_cpus": self.cpus, "include_dashboard": False, "object_store_memory": 100 << 20}
        where = local if self.address is None else {"address": self.address}
        ray.init(**where, log_to_driver=False, logging_level="ERROR")


def run_job(job: Job, folder: Path) -> int:
    """Run a job on a node, in the campaign's folder; returns its exit code.

    Ray cancels a task by a KeyboardInterrupt, which reaches it between two looks at the program.
    """
    os.chdir(folder)
    process = start(job)
    try:
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
    finally:
        process.terminate()
        try:
            process.wait(CANCEL_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.returncode


def _outcome(ray: Any, task: Any, job: Job) -> str:
    try:
        return outcome(job, ray.get(task))
    except ray.exceptions.RayTaskError as error:  # it could not be started
        return f"failed before it could write {job.log}: {error.cause}"
    except ray.exceptions.RayError as error:
        return f"failed, see {job.log} (Ray: {type(error).__name__})"


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ImportError("Ray is not installed: pip install 'dtsn[ray]'") from error
    return ray
