"""Searching for the loss: PPO2 as mathematics, and as a sampler for Optuna."""

from paploss.search.ppo2 import PPO2
from paploss.search.sampler import PPO2Sampler

__all__ = ["PPO2", "PPO2Sampler"]
