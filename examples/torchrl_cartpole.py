"""CartPole by TorchRL: a solver as the actor, the paper's loss as the loss module.

pip install 'dtsn[torchrl]'
python examples/torchrl_cartpole.py
"""

import sys

import torch
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv, RewardSum, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import EGreedyModule
from torchrl.objectives import HardUpdate

from dtsn.integrations.torchrl import DTSNLoss, make_actor

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000

torch.manual_seed(0)
env = TransformedEnv(GymEnv("CartPole-v1"), RewardSum())
env.set_seed(0)
solver, actor = make_actor("dtsn", env, discount=0.99, seed=0)
explore = EGreedyModule(env.action_spec, annealing_num_steps=STEPS // 6, eps_end=0.04)
collector = Collector(env, TensorDictSequential(actor, explore), frames_per_batch=256, total_frames=STEPS)
replay = TensorDictReplayBuffer(storage=LazyTensorStorage(100_000), batch_size=64)
loss_module = DTSNLoss(actor, discount=0.99)
updater = HardUpdate(loss_module, value_network_update_interval=10)
optimizer = torch.optim.Adam(loss_module.parameters(), lr=2.3e-3)

for frames in collector:
    replay.extend(frames.reshape(-1))
    explore.step(frames.numel())
    for _ in range(128):
        loss = loss_module(replay.sample())["loss"]
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(loss_module.parameters(), 10)
        optimizer.step()
        updater.step()
    returns = frames["next", "episode_reward"][frames["next", "done"]]
    print(f"{len(replay):>7} steps, mean return {returns.mean().item():.1f}, loss {loss.item():.3f}")
collector.shutdown()

with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
    print("return:", env.rollout(500, actor)["next", "reward"].sum().item())
solver.save("cartpole-solver")
