"""What a device is called."""

import platform
from functools import cache
from pathlib import Path

import torch


def device_name(device: torch.device) -> str:
    """The model name of a GPU or of this machine's CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return _cpu_name()


@cache
def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
