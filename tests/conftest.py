"""Settings of the whole suite: examples are drawn alike in each run, and nothing is fetched."""

import os
from collections.abc import Iterator

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


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled models and step times of the tests stay apart from the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
