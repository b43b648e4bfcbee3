"""CartPole by Stable-Baselines3: D-TSN in four lines, with rl-zoo's settings for DQN.

pip install 'dtsn[sb3]'
python examples/sb3_cartpole.py
"""

import sys

from stable_baselines3.common.evaluation import evaluate_policy

from dtsn.integrations.sb3 import DTSN

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000

model = DTSN(
    "CartPole-v1",
    learning_rate=2.3e-3,
    batch_size=64,
    buffer_size=100_000,
    learning_starts=1000,
    target_update_interval=10,
    train_freq=256,
    gradient_steps=128,
    exploration_fraction=0.16,
    exploration_final_eps=0.04,
    seed=0,
    verbose=1,
)
model.learn(STEPS)
print("mean return, its deviation:", evaluate_policy(model, model.get_env(), 10, deterministic=True))
model.save("cartpole-sb3")  # for SB3
model.solver.save("cartpole-solver")  # the solver alone: Solver.load("cartpole-solver")
