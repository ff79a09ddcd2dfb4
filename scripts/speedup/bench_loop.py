"""Measure the decoding loop itself: plain decoding against transformers, and peak memory.

    python scripts/speedup/bench_loop.py [--model models/SmolLM2-135M-Instruct] [--json FILE]

Interleaved repeats, warm-up discarded, medians and quartiles. Run nothing else meanwhile.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from pipeline.common.paths import REPO_ROOT
from pipeline.fafo.decode import generate
from pipeline.fafo.selectors import Quest, StreamLLM
from pipeline.fafo.settings import DecodeSettings

FAFO: dict[str, Any] = {"level": 5, "window": 15, "num_guesses": 15}
METHODS: dict[str, Callable[[int], DecodeSettings]] = {
    "plain": lambda n: DecodeSettings(n),
    "fafo-stream": lambda n: DecodeSettings(n, selector=StreamLLM(4, 252), **FAFO),
    "fafo-quest": lambda n: DecodeSettings(n, selector=Quest(16, 16, 8), **FAFO),
}


def main() -> None:
    """Run both measurements, print them as tables and optionally write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=REPO_ROOT / "models/SmolLM2-135M-Instruct", help="a local folder")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--new-tokens", type=int, default=128, help="tokens to generate in the comparison")
    parser.add_argument("--repeats", type=int, default=8, help="counted repeats of the comparison")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--peak-memory-of", choices=METHODS, help=argparse.SUPPRESS)  # this script runs itself
    args = parser.parse_args()
    if args.peak_memory_of:
        Console().print(peak_memory(load(args.model, args.device), args.peak_memory_of))
        return

    model = load(args.model, args.device)
    results: dict[str, Any] = {
        "machine": {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "device": torch.cuda.get_device_name() if model.device.type == "cuda" else "cpu",
            "model": args.model.name,
        },
        "plain_against_transformers": compare_with_transformers(model, args.new_tokens, args.repeats),
    }
    del model
    results["peak_memory_mib"] = {
        name: float(
            subprocess.run(
                [
                    sys.executable,
                    __file__,
                    "--model",
                    str(args.model),
                    "--device",
                    args.device,
                    "--peak-memory-of",
                    name,
                ],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for name in track(METHODS, "Peak memory at 4,000 tokens")
    }
    report(results)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


def load(folder: Path, device: str) -> PreTrainedModel:
    """The model in float32."""
    disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().to(device)


def some_prompt(model: PreTrainedModel, n: int, seed: int = 0) -> list[int]:
    """`n` random tokens: their text doesn't matter for times."""
    return random.Random(seed).choices(range(100, model.config.vocab_size), k=n)


def compare_with_transformers(model: PreTrainedModel, n_new: int, repeats: int) -> dict[str, Any]:
    """Seconds of plain decoding here and by transformers' greedy `generate`, in turn, on the same prompts."""
    seconds: dict[str, list[float]] = {"transformers": [], "plain": []}
    for repeat in track(range(repeats + 1), "Plain decoding against transformers"):
        prompt = some_prompt(model, 150, seed=repeat)
        order = list(seconds) if repeat % 2 else list(reversed(seconds))
        for name in order:
            started = time.perf_counter()
            if name == "plain":
                generate(model, prompt, DecodeSettings(n_new))
            else:
                ids = torch.tensor([prompt], device=model.device)
                output = model.generate(  # type: ignore[operator]
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=n_new,
                    min_new_tokens=n_new,
                    do_sample=False,
                )
                output.tolist()  # waits for the device
            if repeat:  # the first is warm-up
                seconds[name].append(time.perf_counter() - started)
    ratios = [t / p for t, p in zip(seconds["transformers"], seconds["plain"], strict=True)]
    return {
        "tokens": n_new,
        **{name: quartiles([n_new / s for s in values]) for name, values in seconds.items()},
        "plain_over_transformers": quartiles(ratios),
    }


def peak_memory(model: PreTrainedModel, method: str) -> float:
    """MiB that this process has taken at most (on a GPU, in tensors) for 24 new tokens at 4,000 tokens of context."""
    generate(model, some_prompt(model, 4000), METHODS[method](24))
    if model.device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def quartiles(values: list[float]) -> list[float]:
    """Lower quartile, median, upper quartile."""
    return [round(q, 3) for q in quantiles(values, n=4)]


def report(results: dict[str, Any]) -> None:
    """Print the figures."""
    console = Console()
    table = Table("", "lower quartile", "median", "upper quartile", title="tokens/s and their ratio")
    for name in ("transformers", "plain", "plain_over_transformers"):
        table.add_row(name, *map(str, results["plain_against_transformers"][name]))
    console.print(table)
    table = Table("", "MiB", title="peak memory at 4,000 tokens")
    for name, mib in results["peak_memory_mib"].items():
        table.add_row(name, f"{mib:.0f}")
    console.print(table)


if __name__ == "__main__":
    main()
