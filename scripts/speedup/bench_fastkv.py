"""What FastKV saves: seconds of prefill and of each new token, cache bytes read, beside plain decoding and theory.

    python scripts/speedup/bench_fastkv.py [--model models/SmolLM2-135M-Instruct] [--tsp-rate 0.2] [--json FILE]

Both decode the same prompt in turn within one process, and take turns in being first; the first repeat is warm-up.
Printed are medians, ratios being those of single repeats. A length that the model can't take is cut to what leaves room
for the new tokens. Prompts are random: neither times nor bytes depend on the text. Run nothing else meanwhile.

Theory counts the multiplications and additions of reading a prompt. A layer that computes r tokens takes, with hidden
size d, H query heads and K KV heads of size h, and MLP size m,

    2 r (2 d H h + 2 d K h + 3 d m)    in its linear layers: query and output, key and value, the MLP's three;
    2 H h r (r + 1)                    in its attention: q.k and weights times v, each token with those up to itself.

r is all of the prompt but its last token; in FastKV it is less behind the TSP layer. Norms, softmax and rotation are
left out, and so is what choosing costs; the measured times have all that. The time of a new token is a mean that has
the first step in it, which sees the whole prompt, and in FastKV the copy of the chosen entries; bytes likewise.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from pydantic import ValidationError
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from pipeline.common.cli import positive
from pipeline.common.paths import REPO_ROOT
from pipeline.device_name import device_name
from pipeline.errors import UserError
from pipeline.fafo.decode import generate
from pipeline.fafo.settings import DecodeSettings, Generation
from pipeline.fafo.support import context_limit
from pipeline.lossy.fastkv import TokenSelectivePropagation

SETTINGS: dict[str, tuple[Callable[[str], Any], str]] = {
    "tsp_layer": (int, "last layer that computes the whole prompt, the middle one by default"),
    "tsp_rate": (float, "share of the prompt that later layers compute"),
    "kv_retention_rate": (float, "share of the prompt whose entries each layer keeps"),
    "window_size": (int, "tokens of the observation window"),
    "kernel_size": (int, "positions over which saliency is pooled"),
    "num_init": (int, "sinks that are always kept"),
}
MEASURED: dict[str, Callable[[Generation], float]] = {
    "prefill_seconds": lambda g: g.prefill_seconds,
    "seconds_per_token": lambda g: g.decode_seconds / len(g.token_ids),
    "kv_bytes": lambda g: g.kv_bytes,
}
UNITS = {"prefill_seconds": 1.0, "seconds_per_token": 1e-3, "kv_bytes": 2.0**20}  # that are printed


def main() -> None:
    """Measure, print a table and optionally write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=REPO_ROOT / "models/SmolLM2-135M-Instruct", help="a local folder")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--lengths", type=positive, nargs="+", default=[512, 1024, 2048, 4096, 8192], help="of prompts")
    parser.add_argument("--new-tokens", type=positive, default=64, help="tokens to generate")
    parser.add_argument("--repeats", type=positive, default=5, help="counted repeats")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    of_method = parser.add_argument_group("settings of FastKV")
    for name, (read, meaning) in SETTINGS.items():
        of_method.add_argument(f"--{name.replace('_', '-')}", type=read, default=argparse.SUPPRESS, help=meaning)
    args = parser.parse_args()
    if not args.model.is_dir():
        parser.error(f"--model {args.model}: there is no such folder")
    if args.json and not args.json.absolute().parent.is_dir():
        parser.error(f"--json {args.json}: there is no such folder")
    try:
        fastkv = TokenSelectivePropagation(**{name: value for name, value in vars(args).items() if name in SETTINGS})
    except ValidationError as error:
        detail = error.errors()[0]
        option, message = str(detail["loc"][0]).replace("_", "-"), detail["msg"].removeprefix("Value error, ")
        parser.error(f"--{option}: {message}, found {detail['input']!r}")

    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype)).eval().to(args.device)
    fastkv.check(model.config)
    results: dict[str, Any] = {
        "machine": {
            "device": device_name(model.device),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "model": args.model.name,
            "dtype": args.dtype,
        },
        "settings": {name: getattr(fastkv, name) for name in SETTINGS} | {"new_tokens": args.new_tokens},
        "lengths": [],
    }
    for length in possible_lengths(args.lengths, model.config, args.new_tokens):
        results["lengths"].append(measure(model, fastkv, length, args.new_tokens, args.repeats))
        if args.json:
            args.json.write_text(json.dumps(results, indent=2) + "\n")
    report(results)


def possible_lengths(lengths: Sequence[int], config: PretrainedConfig, n_new: int) -> list[int]:
    """The lengths in order, each cut to what leaves the model room for `n_new` tokens."""
    limit = context_limit(config)
    most = max(lengths) if limit is None else limit - n_new
    if most < 1:
        raise UserError(f"--new-tokens: found {n_new}, but the model takes {limit} tokens, the prompt's included")
    return sorted({min(length, most) for length in lengths})


def measure(
    model: PreTrainedModel, fastkv: TokenSelectivePropagation, length: int, n_new: int, repeats: int
) -> dict[str, Any]:
    """What each repeat gave at one length of prompt, by figure and method, and the theory of the prefill."""
    methods = {"plain": DecodeSettings(n_new), "fastkv": DecodeSettings(n_new, selector=fastkv, lossy=True)}
    measured: dict[str, dict[str, list[float]]] = {figure: {name: [] for name in methods} for figure in MEASURED}
    for repeat in track(range(repeats + 1), f"{length} tokens"):
        prompt = random.Random(repeat).choices(range(model.config.vocab_size), k=length)
        for name in methods if repeat % 2 else reversed(methods):
            generation = generate(model, prompt, methods[name])
            if repeat:  # the first is warm-up
                for figure, value_of in MEASURED.items():
                    measured[figure][name].append(value_of(generation))
    n_layers, n_read = model.config.num_hidden_layers, length - 1
    flops = {
        "plain": prefill_flops(model.config, [n_read] * n_layers),
        "fastkv": prefill_flops(model.config, fastkv.rows_of_layers(n_read, n_layers)),
    }
    return {"n_prompt_tokens": length, **measured, "prefill_flops": flops}


def prefill_flops(config: PretrainedConfig, rows: Sequence[int]) -> int:
    """Multiplications and additions of a prefill in which layer i computes `rows[i]` tokens, see above."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    all_heads, kv_heads = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    weights = config.hidden_size * (2 * all_heads + 2 * kv_heads + 3 * config.intermediate_size)
    return sum(2 * n * weights + 2 * all_heads * n * (n + 1) for n in rows)


def report(results: dict[str, Any]) -> None:
    """Print medians of both, and how many times less FastKV takes."""
    console = Console(width=160)
    console.print(results["machine"], results["settings"])
    table = Table(
        "prompt", "prefill s", "fastkv", "times less", "in theory", "ms a token", "fastkv", "times less",
        "KV MiB a step", "fastkv", "times less", title="plain decoding and FastKV, medians",
    )  # fmt: skip
    for of in results["lengths"]:
        cells = {figure: _cells(of[figure], unit) for figure, unit in UNITS.items()}
        flops = of["prefill_flops"]
        theory = f"{flops['plain'] / flops['fastkv']:.2f}" if flops["fastkv"] else ""
        table.add_row(
            str(of["n_prompt_tokens"]),
            *cells["prefill_seconds"], theory, *cells["seconds_per_token"], *cells["kv_bytes"],
        )  # fmt: skip
    console.print(table)


def _cells(values: dict[str, list[float]], unit: float) -> list[str]:
    ratios = [plain / fastkv for plain, fastkv in zip(values["plain"], values["fastkv"], strict=True) if fastkv]
    return [
        *(f"{median(values[name]) / unit:.3f}" for name in ("plain", "fastkv")),
        f"{median(ratios):.2f}" if ratios else "",
    ]


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
