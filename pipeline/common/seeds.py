"""One seed for every random generator in the process."""

import random

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed Python's, numpy's and torch's global generators (`seed` fits 32 bits, which numpy asks for)."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
