"""The device a model goes to, whether it fits there, and what to record of the machine."""

import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from pipeline.common.paths import REPO_ROOT
from pipeline.common.records import Environment
from pipeline.common.shard import WHOLE, Shard
from pipeline.device_name import device_name
from pipeline.errors import UserError
from pipeline.fafo.step_times import StepTimes


def resolve_device(device: str, shard: Shard = WHOLE) -> str:
    """Turn the config's `device` into "cpu", "cuda", "cuda:N", or "auto" (spread over all CUDA devices).

    Where several processes share the prompts, "auto" and "cuda" are a CUDA device for each of them, in turn.

    Raises:
        UserError: CUDA, or the CUDA device of that number, is not there.
    """
    n_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if n_devices and shard.n_processes > 1 and device in ("auto", "cuda"):
        return f"cuda:{shard.local_process % n_devices}"
    if device == "auto":
        return "auto" if n_devices else "cpu"
    if device == "cpu":
        return device
    if not n_devices:
        raise UserError(f'pipeline_params.device: found "{device}", but no CUDA device is here; use "cpu" or "auto"')
    index = int(device.partition(":")[2] or 0)
    if index >= n_devices:
        raise UserError(f'pipeline_params.device: found "{device}"; the last CUDA device here is cuda:{n_devices - 1}')
    return device


def check_memory(config: PretrainedConfig, dtype: torch.dtype, device: str, n_tokens: int) -> None:
    """Refuse a model that does not fit before loading it: Linux would just kill the process.

    n_tokens: cache entries to count on.

    Raises:
        UserError: weights and cache need more bytes than the device has free.
    """
    needed = model_bytes(config, dtype) + cache_bytes(config, dtype, n_tokens)
    available = free_bytes(device)
    if needed > available:
        raise UserError(
            f"too little memory: the model and its cache need about {needed / 2**30:.1f} GiB in {dtype}, and "
            f"{available / 2**30:.1f} GiB are free ({device}); use a smaller model or dtype, or free some"
        )


def model_bytes(config: PretrainedConfig, dtype: torch.dtype) -> int:
    """Bytes of a model's weights, which are not allocated for this."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize


def cache_bytes(config: PretrainedConfig, dtype: torch.dtype, n_tokens: int) -> int:
    """Bytes of the keys and values of `n_tokens` tokens."""
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * kv_heads * head_dim * n_tokens * dtype.itemsize


def free_bytes(device: str) -> int:
    """Memory that can still be had on `device`, as `resolve_device` returns it."""
    if device == "cpu":
        return psutil.virtual_memory().available
    if device == "auto":
        return sum(torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count()))
    return torch.cuda.mem_get_info(torch.device(device))[0]


def describe_environment(
    device: torch.device,
    dtype: torch.dtype,
    compiled: bool = False,
    step_times: StepTimes | None = None,
    n_processes: int = 1,
    interleaved: Sequence[str] = (),
    drafter: dict[str, Any] | None = None,
) -> Environment:
    """What the record of a run says about the machine and the software."""
    packages = ("fafo", "torch", "transformers")
    return Environment(
        versions={"python": platform.python_version(), **{name: _version(name) for name in packages}},
        device=str(device),
        device_name=device_name(device),
        dtype=str(dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        git_commit=_git_commit(),
        compiled=compiled,
        step_times=step_times,
        drafter=drafter,
        n_processes=n_processes,
        interleaved=list(interleaved),
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    command = ["git", "-C", str(REPO_ROOT), "rev-parse", "--show-toplevel", "HEAD"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer[1] if Path(answer[0]) == REPO_ROOT else None  # not that of a checkout that we only lie in
