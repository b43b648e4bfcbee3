"""Environments; importing this package registers them with Gymnasium."""

import gymnasium as gym

gym.register(
    id="dtsn/Navigation-v0",
    entry_point="dtsn.envs.navigation:NavigationEnv",
    vector_entry_point="dtsn.envs.navigation:NavigationVectorEnv",
)
gym.register(id="dtsn/Procgen-v0", entry_point="dtsn.envs.procgen:ProcgenEnv")
gym.register(id="dtsn/Game24-v0", entry_point="dtsn.envs.game24:Game24Env")
