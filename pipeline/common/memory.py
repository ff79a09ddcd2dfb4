"""Telling exhausted memory from other errors."""

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device, or Python, had no memory left; torch's CPU allocator says so in a plain RuntimeError."""
    if isinstance(error, RuntimeError):
        text = str(error)
        return (
            isinstance(error, torch.OutOfMemoryError)
            or "DefaultCPUAllocator" in text
            or "can't allocate memory" in text
        )
    return isinstance(error, MemoryError)
