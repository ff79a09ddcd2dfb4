"""How many tokens a step gives, by method and by the share of the cache that the window sees: tau beside lookahead's.

    python scripts/speedup/bench_budgets.py --results budgets.jsonl [--prompts NAME=FILE ..] [--per-dataset 2]

Prompts are made long: the questions of consecutive rows are joined, in one message, until there are about so many
tokens, for each of `--lengths`. Each is decoded with the paper's pool and planner, which always run the window: once
with a window that sees the whole cache (lookahead decoding), then with each method whose budget can be a share (all but
FastGen) at each of `--shares`. With `--window-only` the pool learns from the window alone, and neither from the prompt
nor from the output, which would hide much of what the window lacks. Outputs are compared with one another. Times are
not of interest, so other things may run meanwhile. Results are appended to a file as they come; the same command goes
on where it stopped, and prints the table.

A FILE is JSONL, see `benchmark_prompts`. HumanEval is built in.
"""

import argparse
import json
import logging
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from rich.progress import track
from rich.table import Table

from eval.sample import Sample
from pipeline.common.cli import positive
from pipeline.common.models import LoadedModel, load_for_measuring
from pipeline.common.prompts import benchmark_samples, encode_prompts
from pipeline.common.raw_results import drop_partial_line
from pipeline.errors import UserError
from pipeline.fafo.decode import generate
from pipeline.fafo.selectors import SELECTORS, Full, Selector
from pipeline.fafo.settings import DecodeSettings

LOOKAHEAD = "full"


def main() -> None:
    """Decode what is not in the results yet, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    methods = [name for name, selector in SELECTORS.items() if selector.budget_key]
    parser.add_argument("--model", default="models/SmolLM2-135M-Instruct", help="hub id or folder")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--prompts", action="append", default=[], metavar="NAME=FILE", help="a dataset of your own")
    parser.add_argument("--per-dataset", type=positive, default=2, help="prompts of each dataset and length")
    parser.add_argument("--lengths", type=positive, nargs="+", default=[2000, 3000, 4000], help="tokens of a prompt")
    parser.add_argument("--methods", nargs="+", choices=methods, default=methods, metavar="M", help=", ".join(methods))
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1, 0.25, 0.5, 1.0], help="of the cache")
    parser.add_argument("--new-tokens", type=positive, default=96, help="most tokens to generate")
    parser.add_argument("--level", type=positive, default=5)
    parser.add_argument("--window", type=positive, default=15)
    parser.add_argument("--num-guesses", type=positive, default=15)
    parser.add_argument("--window-only", action="store_true", help="guess from the window's n-grams alone")
    parser.add_argument("--results", type=Path, required=True, help="a JSONL file, appended to")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    if not all(0 < share <= 1 for share in args.shares):
        parser.error("--shares: should be above 0 and at most 1")
    if not args.results.absolute().parent.is_dir() or args.results.is_dir():
        parser.error(f"--results {args.results}: should be a file in a folder that is there")
    decoding = {name: getattr(args, name) for name in ("level", "window", "num_guesses")}
    decoding |= dict.fromkeys(("pool_from_prompt", "pool_from_output"), not args.window_only)
    try:
        usual = DecodeSettings(args.new_tokens, **decoding)
    except ValidationError as error:
        detail = error.errors()[0]
        parser.error(f"{'.'.join(map(str, detail['loc']))}: found {detail['input']}; {detail['msg']}")
    if not usual.has_window_rows:
        parser.error(f"--level {args.level} --window {args.window}: there is no window to measure")

    loaded = load_for_measuring(args.model, args.new_tokens, "float32", args.device)
    settings = decoding | {"model": args.model, "new_tokens": args.new_tokens, "prompts": args.prompts}
    drop_partial_line(args.results)
    results = [json.loads(line) for line in args.results.read_text().splitlines()] if args.results.exists() else []
    if any(result["settings"] != settings for result in results):
        parser.error(f"--results {args.results}: holds results of other settings, {results[0]['settings']}")
    done = {(r["prompt"], r["method"], r["share"]) for r in results}
    compressed = {
        (name, share): SELECTORS[name](**{str(SELECTORS[name].budget_key): share})
        for name in args.methods
        for share in args.shares
    }
    selectors: dict[tuple[str, float], Selector] = {(LOOKAHEAD, 1.0): Full(), **compressed}
    prompts = long_prompts(args.prompts, args.lengths, args.per_dataset, loaded)
    todo = [(name, ids, key) for name, ids in prompts.items() for key in selectors if (name, *key) not in done]
    for name, token_ids, (method, share) in track(todo, "Generations"):
        selector = selectors[method, share].bind(loaded.tokenizer)
        asked = replace(usual, selector=selector, eos_token_ids=loaded.eos_token_ids)
        generation = generate(loaded.model, token_ids, asked)
        result = {
            "prompt": name,
            "method": method,
            "share": share,
            "settings": settings,
            "n_prompt_tokens": len(token_ids),
            "token_ids": generation.token_ids,
            "n_steps": len(generation.accepted_lengths),
            "cache_tokens": generation.cache_tokens_beside_window,
            "window_cache_tokens": generation.window_cache_tokens,
        }
        results.append(result)
        with args.results.open("a") as file:
            file.write(json.dumps(result) + "\n")
    report(results)


def long_prompts(files: list[str], lengths: list[int], per_dataset: int, loaded: LoadedModel) -> dict[str, list[int]]:
    """Token ids of prompts of about these lengths, by a name that says where they come from."""
    prompts = {}
    for dataset, samples in benchmark_samples(files).items():
        row = 0
        for length in lengths * per_dataset:
            first, text = row, ""
            token_ids: list[int] = []
            while len(token_ids) < length:
                if row == len(samples):
                    raise UserError(f"{dataset}: its {row} rows are too few for these --lengths and --per-dataset")
                text += samples[row].messages[0]["content"] + "\n\n" if samples[row].messages else samples[row].text
                row += 1
                joined = Sample(id=str(first), messages=({"role": "user", "content": text},), text=text, reference={})
                (prompt,) = encode_prompts([joined], loaded)
                token_ids = prompt.token_ids
            prompts[f"{dataset}, rows {first} to {row - 1}"] = token_ids
    return prompts


def report(results: list[dict[str, Any]]) -> None:
    """Print tau by method and share, and how it compares with lookahead's on the same prompts."""
    lookahead = {r["prompt"]: r for r in results if r["method"] == LOOKAHEAD}
    lengths = [r["n_prompt_tokens"] for r in lookahead.values()]
    table = Table(
        "method", "share", "cache seen", "tau", "of lookahead's", "least", "prompts", "identical",
        title=f"{len(lookahead)} prompts of {min(lengths)} to {max(lengths)} tokens",
    )  # fmt: skip
    for method, share in dict.fromkeys((r["method"], r["share"]) for r in results):
        of = [r for r in results if (r["method"], r["share"]) == (method, share) and r["prompt"] in lookahead]
        rivals = [lookahead[r["prompt"]] for r in of]
        ratios = [tau([r]) / tau([rival]) for r, rival in zip(of, rivals, strict=True)]
        seen = mean(r["window_cache_tokens"] / r["cache_tokens"] for r in of)
        identical = sum(r["token_ids"] == rival["token_ids"] for r, rival in zip(of, rivals, strict=True))
        table.add_row(
            method, f"{share:.0%}", f"{seen:.0%}", f"{tau(of):.3f}", f"{tau(of) / tau(rivals):.3f}",
            f"{min(ratios):.3f}", str(len(of)), f"{identical}/{len(of)}",
        )  # fmt: skip
    Console(width=120).print(table)


def tau(results: list[dict[str, Any]]) -> float:
    """Tokens a step, over all of these generations."""
    return sum(len(r["token_ids"]) for r in results) / sum(r["n_steps"] for r in results)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
