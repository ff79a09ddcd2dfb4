"""Compare whole generations: transformers, its prompt lookup, plain decoding, FAFO and other ways to guess.

    python scripts/speedup/bench_methods.py --results bench.jsonl [--prompts NAME=FILE ..] [--per-dataset 20]

All methods decode each prompt in turn within one process, in an order that rotates from prompt to prompt; datasets take
turns too, so that a run that is stopped has covered all of them. Prefill is part of the time. Every output is compared
with transformers' own. Results are appended to a file as they come; the same command goes on where it stopped, and
prints the table. Run nothing else meanwhile. "our-prompt-lookup-3" is "prompt-lookup-3", which is transformers', in our
loop.

A FILE is JSONL, see `benchmark_prompts`. HumanEval is built in.
"""

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import PreTrainedModel

from pipeline.common.cli import positive
from pipeline.common.models import LoadedModel, load_for_measuring
from pipeline.common.prompts import benchmark_prompts
from pipeline.errors import UserError
from pipeline.fafo.decode import generate
from pipeline.fafo.selectors import StreamLLM
from pipeline.fafo.settings import DecodeSettings
from pipeline.prompt_lookup.lookup import PromptLookup
from pipeline.selfspec_kv.draft import CompressedDraft
from pipeline.token_recycling.recycling import TokenRecycling

REFERENCE = "transformers"
AUTO: dict[str, Any] = {"level": 5, "window": 15, "num_guesses": 15, "pool": "ranked", "planner": "auto"}
LOOKUP = "better prompt lookup"  # of transformers', for each prompt


@dataclass(frozen=True)
class Output:
    """What a method made of a prompt. steps: decoding passes, None where it doesn't tell."""

    token_ids: list[int]
    steps: int | None = None


Method = Callable[[LoadedModel, list[int], int], Output]


def by_transformers(loaded: LoadedModel, prompt: list[int], n_new: int, **settings: Any) -> Output:
    """Greedy `model.generate`. With prompt lookup it goes beyond the limit at times; these tokens are cut off."""
    model: Any = loaded.model
    ids = torch.tensor([prompt], device=model.device)
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n_new, do_sample=False, **settings)
    return Output(output[0, len(prompt) :].tolist()[:n_new])


def by_fafo(loaded: LoadedModel, prompt: list[int], n_new: int, **settings: Any) -> Output:
    """Our loop."""
    decode_settings = DecodeSettings(n_new, loaded.eos_token_ids, selector=StreamLLM(4, 252), **settings)
    generation = generate(loaded.model, prompt, decode_settings)
    return Output(generation.token_ids, len(generation.accepted_lengths))


METHODS: dict[str, Method] = {
    REFERENCE: by_transformers,
    **{f"prompt-lookup-{n}": partial(by_transformers, prompt_lookup_num_tokens=n) for n in (3, 7, 10)},
    "plain": by_fafo,
    "auto": partial(by_fafo, **AUTO),
    "plain-compiled": partial(by_fafo, compile=True),
    "auto-compiled": partial(by_fafo, compile=True, **AUTO),
    "lru-5-15-15": partial(by_fafo, level=5, window=15, num_guesses=15),
    "lru-4-7-7": partial(by_fafo, level=4, window=7, num_guesses=7),
    "lru-5-15-15-auto": partial(by_fafo, level=5, window=15, num_guesses=15, planner="auto"),
    **{f"our-prompt-lookup-{n}": partial(by_fafo, drafter=PromptLookup(n)) for n in (3, 7, 10)},
    "our-prompt-lookup-10-auto": partial(by_fafo, drafter=PromptLookup(10), planner="auto"),
    **{f"token-recycling-{n}": partial(by_fafo, drafter=TokenRecycling(n_tree_rows=n)) for n in (7, 15, 80)},
    "token-recycling-80-auto": partial(by_fafo, drafter=TokenRecycling(n_tree_rows=80), planner="auto"),
    **{f"selfspec-kv-{n}": partial(by_fafo, drafter=CompressedDraft(gamma=n)) for n in (2, 3, 4)},
}
DEFAULT = (REFERENCE, "prompt-lookup-3", "prompt-lookup-10", "plain", "auto", "plain-compiled", "auto-compiled")


def main() -> None:
    """Decode what is not in the results yet, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/SmolLM2-135M-Instruct", help="hub id or folder")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--prompts", action="append", default=[], metavar="NAME=FILE", help="a dataset of your own")
    parser.add_argument("--per-dataset", type=positive, default=20, help="prompts of each dataset, from the first")
    parser.add_argument("--new-tokens", type=positive, default=256, help="most tokens to generate")
    parser.add_argument("--methods", default=",".join(DEFAULT), help=f"of {', '.join(METHODS)}")
    parser.add_argument("--results", type=Path, required=True, help="a JSONL file, appended to")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("pipeline").setLevel(logging.INFO)
    names = list(dict.fromkeys([REFERENCE, *args.methods.split(",")]))
    if unknown := set(names) - set(METHODS):
        parser.error(f"--methods: unknown {', '.join(map(repr, sorted(unknown)))}; known: {', '.join(METHODS)}")
    if not args.results.absolute().parent.is_dir():
        parser.error(f"--results {args.results}: there is no such folder")

    loaded = load_for_measuring(args.model, args.new_tokens, args.dtype, args.device)
    settings = {name: getattr(args, name) for name in ("model", "device", "dtype", "new_tokens", "methods")} | {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    results = [json.loads(line) for line in args.results.read_text().splitlines()] if args.results.exists() else []
    if any(result["settings"] != settings for result in results):
        parser.error(f"--results {args.results}: holds results of other settings, {results[0]['settings']}")
    done = {(r["dataset"], r["id"]) for r in results}
    prompts = benchmark_prompts(args.prompts, args.per_dataset, loaded)
    todo = [(d, i, ids) for d, i, ids in prompts if (d, i) not in done]
    if todo:
        for name in names:
            METHODS[name](loaded, todo[0][2], 24)  # loads, compiles and measures
    for number, (dataset, prompt_id, token_ids) in enumerate(track(todo, "Prompts"), start=len(results)):
        shift = number % len(names)
        seconds, outputs = {}, {}
        for name in names[shift:] + names[:shift]:
            started = time.perf_counter()
            outputs[name] = METHODS[name](loaded, token_ids, args.new_tokens)
            seconds[name] = time.perf_counter() - started
        reference = outputs[REFERENCE].token_ids
        result = {
            "dataset": dataset,
            "id": prompt_id,
            "n_prompt_tokens": len(token_ids),
            "settings": settings,
            "n_new_tokens": {name: len(outputs[name].token_ids) for name in names},
            "seconds": {name: round(seconds[name], 4) for name in names},
            "steps": {name: outputs[name].steps for name in names},
            "identical": {name: outputs[name].token_ids == reference for name in names},
        }
        results.append(result)
        with args.results.open("a") as file:
            file.write(json.dumps(result) + "\n")
    report(results, names, loaded.model)


def report(results: list[dict[str, Any]], names: list[str], model: PreTrainedModel) -> None:
    """Print speed and tau by dataset, and speedups prompt by prompt."""
    console = Console(width=160)
    console.print(
        f"{len(results)} prompts; torch {torch.__version__}, {torch.get_num_threads()} threads, {model.dtype}"
    )
    groups = {name: [r for r in results if r["dataset"] == name] for name in {r["dataset"]: 0 for r in results}}
    groups["all"] = results
    table = Table("method", *groups, "identical", title="tokens/s (tau), prefill included")
    for name in names:
        cells = []
        for group in groups.values():
            tokens = sum(r["n_new_tokens"][name] for r in group)
            steps = [r["steps"][name] for r in group]
            tau = "" if None in steps else f" ({tokens / sum(steps):.2f})"
            cells.append(f"{tokens / sum(r['seconds'][name] for r in group):.1f}{tau}")
        table.add_row(name, *cells, f"{sum(r['identical'][name] for r in results)}/{len(results)}")
    console.print(table)
    table = Table("speedup", *groups, "quartiles", "least", title="speedup of single prompts, mean")
    for name, base in comparisons(names):
        ratios = {group: [rate(r, name) / rate(r, base) for r in of] for group, of in groups.items()}
        spread = " / ".join(f"{q:.2f}" for q in quantiles(ratios["all"], n=4)) if len(results) > 1 else ""
        cells = [f"{mean(values):.2f}" for values in ratios.values()]
        table.add_row(f"{name} over {base}", *cells, spread, f"{min(ratios['all']):.2f}")
    console.print(table)


def comparisons(names: list[str]) -> list[tuple[str, str]]:
    """Each method with transformers, its lookups in our loop, and FAFO with plain decoding and the better lookup."""
    lookups = [name for name in names if is_lookup(name)]
    pairs = [(name, REFERENCE) for name in names if name != REFERENCE]
    pairs += [(f"our-{name}", name) for name in lookups]
    pairs += [("auto", "plain"), ("auto-compiled", "plain-compiled"), ("auto", LOOKUP), ("auto-compiled", LOOKUP)]
    ran = {*names, LOOKUP} if lookups else {*names}
    return [pair for pair in pairs if {*pair} <= ran]


def is_lookup(name: str) -> bool:
    """Whether the method is transformers' prompt lookup."""
    return name.startswith("prompt-lookup")


def rate(result: dict[str, Any], name: str) -> float:
    """Tokens a second of a method for one prompt."""
    if name == LOOKUP:
        return max(rate(result, known) for known in result["seconds"] if is_lookup(known))
    return result["n_new_tokens"][name] / result["seconds"][name]


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
