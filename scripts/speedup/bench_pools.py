"""How many tokens each pool gets accepted with so many rows, with and without a window: tau against rows.

    python scripts/speedup/bench_pools.py [--prompts NAME=FILE ..] [--per-dataset 3] [--new-tokens 128]

Each prompt is decoded once with a window of (level, window) = (5, 15) on a StreamingLLM view of 4 + 252 tokens, and
what the pool is told at each step is recorded. That is then replayed to pools of both kinds for different numbers of
guess rows, with the window's n-grams and without. A replay is an approximation: with other rows the window would have
moved at another pace, and the model's successors would have been seen at other rows.
"""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from pipeline.common.cli import positive
from pipeline.common.models import LoadedModel, load_for_measuring
from pipeline.common.prompts import benchmark_prompts
from pipeline.errors import UserError
from pipeline.fafo.decode import Decoding
from pipeline.fafo.pool import NgramPool, Pool, Successors
from pipeline.fafo.ranked import RankedPool
from pipeline.fafo.selectors import StreamLLM
from pipeline.fafo.settings import DecodeSettings

LEVEL, WINDOW = 5, 15
ROWS = (3, 7, 15, 31, 60)
POOLS = {"lru": lambda: NgramPool(LEVEL, WINDOW), "ranked": RankedPool}


@dataclass
class Told:
    """What the pool was told in one step."""

    n_tokens: int  # of the output, when the step began
    ngrams: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    successors: list[tuple[int, Successors]] = field(default_factory=list)


class Recorder(RankedPool):
    """A ranked pool that writes down what it is told."""

    def __init__(self, n_prompt: int) -> None:
        super().__init__()
        self.n_prompt = n_prompt
        self.steps: list[Told] = []

    def propose(self, text: Sequence[int], n_rows: int, max_depth: int, min_chance: float = 0.0) -> Any:
        """Begin a step."""
        self.steps.append(Told(len(text) - self.n_prompt))
        return super().propose(text, n_rows, max_depth, min_chance)

    def add(self, key: int, guess: tuple[int, ...]) -> None:
        """Write an n-gram down."""
        self.steps[-1].ngrams.append((key, guess))
        super().add(key, guess)

    def add_successors(self, token: int, successors: Successors) -> None:
        """Write successors down."""
        self.steps[-1].successors.append((token, successors))
        super().add_successors(token, successors)


def main() -> None:
    """Record, replay, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/SmolLM2-135M-Instruct", help="hub id or folder")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--prompts", action="append", default=[], metavar="NAME=FILE", help="a dataset of your own")
    parser.add_argument("--per-dataset", type=positive, default=3, help="prompts of each dataset, from the first")
    parser.add_argument("--new-tokens", type=positive, default=128, help="most tokens to generate")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    loaded = load_for_measuring(args.model, args.new_tokens, "float32", args.device)
    prompts = benchmark_prompts(args.prompts, args.per_dataset, loaded)
    taus: dict[str, dict[str, list[float]]] = {}
    for dataset, _, prompt in track(prompts, "Prompts"):
        output, steps = record(loaded, prompt, args.new_tokens)
        for pool, with_window, n_rows in product(POOLS, (False, True), ROWS):
            tau = replay(POOLS[pool](), prompt, output, steps, n_rows, with_window)
            for group in (dataset, "all"):
                taus.setdefault(group, {}).setdefault(f"{pool}, window {with_window}, {n_rows} rows", []).append(tau)
    means = {group: {name: round(mean(values), 3) for name, values in of.items()} for group, of in taus.items()}
    if args.json:
        args.json.write_text(json.dumps(means, indent=2) + "\n")
    table = Table(
        "pool", "dataset", *(f"{n} rows" for n in ROWS), title="mean tau of prompts: without, with the window"
    )
    for pool, group in product(POOLS, means):
        cells = (
            [f"{means[group][f'{pool}, window {with_window}, {n} rows']:.2f}" for with_window in (False, True)]
            for n in ROWS
        )
        table.add_row(pool, group, *(", ".join(cell) for cell in cells))
    Console(width=120).print(table)


@torch.inference_mode()
def record(loaded: LoadedModel, prompt: list[int], n_new: int) -> tuple[list[int], list[Told]]:
    """Decode with a window; return the output and what the pool was told."""
    settings = DecodeSettings(
        n_new,
        loaded.eos_token_ids,
        level=LEVEL,
        window=WINDOW,
        num_guesses=4,
        pool="ranked",
        selector=StreamLLM(4, 252),
    )
    decoding = Decoding(loaded.model, prompt, settings)
    decoding.pool = recorder = Recorder(len(prompt))
    return decoding.run().token_ids, recorder.steps


def replay(
    pool: Pool, prompt: list[int], output: list[int], steps: list[Told], n_rows: int, with_window: bool
) -> float:
    """Tau of a decoding that verifies the pool's first `n_rows` guess rows at each step."""
    pool.add_text(prompt)
    text, n_steps, told = list(prompt), 0, 0
    while (n := len(text) - len(prompt)) < len(output):
        while told < len(steps) and steps[told].n_tokens < n:
            for ngram in steps[told].ngrams if with_window else ():
                pool.add(*ngram)
            for successors in steps[told].successors:
                pool.add_successors(*successors)
            told += 1
        tree = pool.propose(text, n_rows, len(output) - n - 1)
        n_new = len(tree.follow(output[n:]))
        text += output[n : n + n_new]
        pool.add_text(text, len(text) - n_new)
        n_steps += 1
    return len(output) / n_steps


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
