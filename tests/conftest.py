"""Settings of the whole suite: examples are drawn alike in each run, and nothing is fetched."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests import tiny

settings.register_profile("fafo", derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("fafo")
torch.set_num_threads(1)  # tiny models only: more threads are slower


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where the tiny models run: cpu, cuda or cuda:N")


def pytest_configure(config: pytest.Config) -> None:
    tiny.DEVICE = config.getoption("--device")
