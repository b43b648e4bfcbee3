"""How fast and in how much memory training reads a Procgen data set larger than memory should hold.

    python tests/streaming.py data/coinrun.h5 10 /tmp/large.h5

repeats the episodes of a data set until their raw frames take 10 GB, reads batches of it, and compares a
batch's time with a training step's.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

import torch

from dtsn.config import NetworkConfig, SolverConfig, TrainConfig
from dtsn.data import Dataset, DatasetWriter
from dtsn.training.trainer import Trainer

KEPT = ("env_id", "env_options", "num_actions", "discount")


def repeat(source: Path, gigabytes: float, target: Path) -> None:
    """Write the episodes of a data set again and again until their frames take this much."""
    with Dataset(source) as dataset:
        header = {name: dataset.header[name] for name in KEPT}
        frame = dataset.observation_dtype.itemsize * int(torch.tensor(dataset.observation_shape).prod())
        left, index = gigabytes * 1e9, 0
        with DatasetWriter(target, **header, observation_shape=dataset.observation_shape) as writer:
            while left > 0:
                episode = dataset.episode(index % dataset.num_episodes)
                writer.add_episode(episode)
                left -= len(episode.observations) * frame
                index += 1


def main() -> None:
    """Measure and print."""
    source, gigabytes, target = Path(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    if not target.exists():
        repeat(source, gigabytes, target)
    print(f"{target.stat().st_size / 1e9:.2f} GB on disk", flush=True)
    with Dataset(target, verify=False) as dataset:
        for size in (64, 256):
            batches, count = dataset.batches(size, seed=0), 80_000 // size  # several pools
            began = time.process_time()
            for _ in range(count):
                batch = next(batches)
            read = (time.process_time() - began) / count
            network = NetworkConfig(encoder="nature", latent=256, hidden=256, precision="bfloat16")
            config = TrainConfig(
                solver=SolverConfig("dtsn"), network=network, batch_size=size, search_warmup=0
            )
            trainer = Trainer(config, dataset.observation, dataset.num_actions)
            trainer.update(batch)
            began = time.process_time()
            for _ in range(3):
                trainer.update(batch)
            step = (time.process_time() - began) / 3
            print(
                f"batch {size}: read {1e3 * read:.1f} ms, step {1e3 * step:.0f} ms, ratio {read / step:.3f}"
            )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
