"""Measure a decoding step: its cost by rows and context, and where its time goes.

    python scripts/speedup/bench_step.py [--model models/SmolLM2-135M-Instruct] [--compile] [--json FILE]
    python scripts/speedup/bench_step.py --shape llama-3.1-8b --device cuda --dtype bfloat16   # random weights

Prints medians and quartiles of interleaved repeats, warm-up discarded, the device synchronized. Texts are random and
caches hold repeated entries: neither matters for times. Run nothing else meanwhile.
"""

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from pipeline.common.cli import positive
from pipeline.common.paths import REPO_ROOT
from pipeline.device_name import device_name
from pipeline.fafo import attention, decode
from pipeline.fafo.attention import fafo_attention_on
from pipeline.fafo.cache import FullCache
from pipeline.fafo.decode import Decoding, now
from pipeline.fafo.forward import Forward
from pipeline.fafo.measure import step_seconds
from pipeline.fafo.selectors import Full, Quest, StreamLLM
from pipeline.fafo.selectors.base import KeyValues
from pipeline.fafo.settings import DecodeSettings
from pipeline.projection.shapes import SHAPES

PUBLISHED: dict[str, Any] = {"level": 5, "window": 15, "num_guesses": 15}
METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "lookahead": {"selector": Full(), **PUBLISHED},
    "fafo-stream": {"selector": StreamLLM(4, 252), **PUBLISHED},
    "fafo-stream, ranked": {"selector": StreamLLM(4, 252), "pool": "ranked", **PUBLISHED},
    "fafo-quest": {"selector": Quest(16, 16, 8), **PUBLISHED},
}
PARTS = ("verification attention", "window attention", "rest of the model", "reading tokens", "own code")
SEED_TOKENS = 256  # cache entries that are computed, the rest repeats them


def main() -> None:
    """Run both measurements, print them and optionally write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=REPO_ROOT / "models/SmolLM2-135M-Instruct", help="a local folder")
    parser.add_argument("--shape", choices=SHAPES, help="instead of --model: random weights of this shape")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--compile", action="store_true", help="run the model compiled")
    parser.add_argument("--rows", type=positive, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128])
    parser.add_argument("--contexts", type=positive, nargs="+", default=[256, 1024, 4096, 8192])
    parser.add_argument("--repeats", type=positive, default=7, help="counted repeats")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()

    model = load(args)
    results: dict[str, Any] = {
        "machine": {
            "device": device_name(model.device),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "model": args.shape or args.model.name,
            "dtype": args.dtype,
            "compile": args.compile,
        },
        "rows": [],
        "steps": [],
    }
    with torch.inference_mode(), fafo_attention_on(model):
        for context in args.contexts:
            entries = repeated_entries(model, context)
            results["rows"] += cost_of_rows(model, args, context, entries)
            results["steps"] += shares_of_steps(model, args, context, entries)
            if args.json:
                args.json.write_text(json.dumps(results, indent=2) + "\n")
    report(results)


def load(args: argparse.Namespace) -> PreTrainedModel:
    """The model, or random weights."""
    disable_progress_bar()
    dtype = getattr(torch, args.dtype)
    if args.shape:
        with torch.device(args.device):
            return AutoModelForCausalLM.from_config(SHAPES[args.shape], dtype=dtype).eval()
    config = AutoConfig.from_pretrained(args.model)
    config.max_position_embeddings = max(config.max_position_embeddings, 2 * max(args.contexts))  # texts are random
    return AutoModelForCausalLM.from_pretrained(args.model, config=config, dtype=dtype).eval().to(args.device)


def repeated_entries(model: PreTrainedModel, n: int) -> list[KeyValues]:
    """Keys and values of each layer for `n` cached tokens, [1, kv_heads, n, head_dim]."""
    n_layers = model.config.num_hidden_layers
    cache = FullCache.for_model(model, SEED_TOKENS)
    Forward(model).text(some_tokens(model, SEED_TOKENS), cache)
    times = -(-n // SEED_TOKENS)
    return [tuple(t.repeat(1, 1, times, 1)[:, :, :n] for t in cache.entries(i)) for i in range(n_layers)]  # type: ignore[misc]


def some_tokens(model: PreTrainedModel, n: int, seed: int = 0) -> list[int]:
    """Random tokens."""
    return random.Random(seed).choices(range(model.config.vocab_size), k=n)


def cost_of_rows(
    model: PreTrainedModel, args: argparse.Namespace, context: int, entries: list[KeyValues]
) -> list[dict[str, Any]]:
    """Milliseconds of steps with so many rows, all of them verified, reading their tokens included."""
    forward = Forward(model, compile=args.compile)
    cache = FullCache.for_model(model, context + max(args.rows))
    for layer, (keys, values) in enumerate(entries):
        cache.append(layer, keys, values)
    cache.commit(list(range(context)))
    times: dict[int, list[float]] = {n: [] for n in args.rows}
    for repeat in track(range(args.repeats + 1), f"Rows at {context} tokens"):
        for n_rows in args.rows:
            seconds = step_seconds(forward, cache, n_rows)
            if repeat:
                times[n_rows].append(1e3 * seconds)
    return [{"context": context, "rows": n, "ms": quartiles(values)} for n, values in times.items()]


def shares_of_steps(
    model: PreTrainedModel, args: argparse.Namespace, context: int, entries: list[KeyValues]
) -> list[dict[str, Any]]:
    """Milliseconds of each part of a step, all guess and window rows there."""
    times: dict[str, dict[str, list[float]]] = {name: {} for name in METHODS}
    decodings, guesses = {}, random.Random(1)
    n_steps = args.repeats + 6  # the first ones fill the window
    for name, settings in METHODS.items():
        decoding = Decoding(
            model, some_tokens(model, context + 1), DecodeSettings(8 * n_steps, compile=args.compile, **settings)
        )
        decoding.continue_from(entries)
        decoding.prefill()
        decodings[name] = decoding
    for step in track(range(n_steps), f"Steps at {context} tokens"):
        for name, decoding in decodings.items():
            for _ in range(decoding.settings.num_guesses):
                decoding.pool.add(decoding.text[-1], tuple(some_tokens(model, 4, guesses.randrange(10**6))))
            parts = timed_step(decoding)
            if step >= n_steps - args.repeats:
                for part, seconds in parts.items():
                    times[name].setdefault(part, []).append(1e3 * seconds)
    return [
        {"context": context, "method": name, **{part: quartiles(values) for part, values in parts.items()}}
        for name, parts in times.items()
    ]


def timed_step(decoding: Decoding) -> dict[str, float]:
    """Seconds of one step and its parts."""
    seconds: defaultdict[str, float] = defaultdict(float)
    kept: list[Any] = []  # the logits: giving their memory back is not our code's work

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            started = now(decoding.model)
            result = function(*args, **kwargs)
            seconds[part] += now(decoding.model) - started
            kept[:] = [result]
            return result

        return call

    forward = decoding.forward
    whole = ("compiled",) if forward.compiled is not None else ("body", "head")
    model_calls: dict[str, Any] = {name: timed("model", getattr(forward, name)) for name in whole}
    with (
        patch.object(attention, "attend_step", timed("attention", attention.attend_step)),
        patch.object(attention, "_window", timed("window attention", attention._window)),
        patch.object(decode, "greedy_tokens", timed("reading tokens", decode.greedy_tokens)),
        patch.object(decode, "top_tokens", timed("reading tokens", decode.top_tokens)),
        patch.multiple(forward, **model_calls),
    ):
        started = now(decoding.model)
        decoding.step()
        seconds["step"] = now(decoding.model) - started
    seconds["own code"] = seconds["step"] - seconds["model"] - seconds["reading tokens"]
    seconds["rest of the model"] = seconds["model"] - seconds["attention"]
    seconds["verification attention"] = seconds["attention"] - seconds["window attention"]
    return {part: seconds[part] for part in ("step", *PARTS)}


def quartiles(values: list[float]) -> list[float]:
    """Lower quartile, median, upper quartile."""
    return [round(q, 3) for q in quantiles(values, n=4)]


def report(results: dict[str, Any]) -> None:
    """Print the medians, and the spread of the whole steps."""
    console = Console(width=160)
    console.print(results["machine"])
    contexts = sorted({r["context"] for r in results["rows"]})
    table = Table("rows", *map(str, contexts), title="ms a step by rows and cached tokens: median (quartiles)")
    for n_rows in sorted({r["rows"] for r in results["rows"]}):
        cells = {r["context"]: r["ms"] for r in results["rows"] if r["rows"] == n_rows}
        table.add_row(str(n_rows), *("{1:.1f} ({0:.1f}-{2:.1f})".format(*cells[context]) for context in contexts))
    console.print(table)
    table = Table("context", "method", "step (quartiles)", *PARTS, title="ms a step, medians")
    for r in results["steps"]:
        step = "{1:.1f} ({0:.1f}-{2:.1f})".format(*r["step"])
        table.add_row(str(r["context"]), r["method"], step, *(f"{r[part][1]:.2f}" for part in PARTS))
    console.print(table)


if __name__ == "__main__":
    main()
