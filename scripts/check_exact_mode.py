"""Check that with `exact` FAFO's logits are those of plain decoding, bit by bit, and what that costs.

    python scripts/check_exact_mode.py                    # 500 prompts of tiny random models in each dtype
    python scripts/check_exact_mode.py --model models/SmolLM2-135M-Instruct --prompts 20 --new-tokens 128

Each prompt is decoded plainly and by FAFO-Stream, FAFO-Quest and lookahead decoding. Exit code 1 for any difference.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from eval.humaneval.load import HumanEvalParams
from pipeline.common.models import load_for_measuring
from pipeline.common.prompts import encode_prompts, load_samples
from pipeline.fafo.decode import Decoding
from pipeline.fafo.selectors import Full, Quest, StreamLLM
from pipeline.fafo.settings import DecodeSettings

METHODS = {
    "fafo-stream": StreamLLM(num_init=4, num_local=60),
    "fafo-quest": Quest(page_size=16, top_k=4, update_interval=4),
    "lookahead": Full(),
}
Case = tuple[PreTrainedModel, list[int], tuple[int, ...]]  # model, prompt, EOS ids


def main() -> int:
    """Decode every prompt in each dtype and print how many are identical, and the time against the default mode."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="hub id or folder, on HumanEval; tiny random models if not given")
    parser.add_argument("--prompts", type=int, default=500, help="how many")
    parser.add_argument("--new-tokens", type=int, default=32, help="most tokens to generate")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16", "float16"], help="one or more")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--time", action="store_true", help="decode in the default mode too, to compare the time")
    parser.add_argument("--level", type=int, default=5, help="n-gram size")
    parser.add_argument("--window", type=int, default=5, help="columns of the Jacobi window")
    parser.add_argument("--num-guesses", type=int, default=5, help="guesses verified a step")
    args = parser.parse_args()

    table = Table(
        "dtype", "method", "identical logits", "tau", "time over default mode", title=args.model or "tiny models"
    )
    all_identical = True
    for dtype in args.dtype:
        plain = DecodeSettings(args.new_tokens)
        fafo = {
            name: DecodeSettings(args.new_tokens, (), args.level, args.window, args.num_guesses, selector=selector)
            for name, selector in METHODS.items()
        }
        tally = {name: Tally() for name in ("plain", *fafo)}
        for model, prompt, eos in track(cases(args, dtype), f"Prompts in {dtype}", total=args.prompts):
            expected: list[Tensor] = []
            for name, settings in {"plain": plain, **fafo}.items():
                logits, tau, seconds = decode(model, prompt, settings, eos, exact=True)
                expected = expected or logits
                default_seconds = decode(model, prompt, settings, eos, exact=False)[2] if args.time else 0.0
                is_same = len(logits) == len(expected) and all(map(torch.equal, logits, expected))
                tally[name].add(is_same, tau, seconds, default_seconds)
        for name, t in tally.items():
            table.add_row(
                dtype,
                name,
                f"{t.n_identical}/{t.n}",
                f"{t.tau / t.n:.2f}",
                f"{t.seconds / t.default_seconds:.2f}x" if args.time else "",
            )
            all_identical &= t.n_identical == t.n
    Console().print(table)
    return 0 if all_identical else 1


class Tally:
    """Sums over the prompts."""

    def __init__(self) -> None:
        self.n = self.n_identical = 0
        self.tau = self.seconds = self.default_seconds = 0.0

    def add(self, is_same: bool, tau: float, seconds: float, default_seconds: float) -> None:
        """Count one prompt."""
        self.n += 1
        self.n_identical += is_same
        self.tau += tau
        self.seconds += seconds
        self.default_seconds += default_seconds


def decode(
    model: PreTrainedModel, prompt: list[int], settings: DecodeSettings, eos: tuple[int, ...], exact: bool
) -> tuple[list[Tensor], float, float]:
    """The logits that each output token was chosen from, tau, and seconds."""
    logits: list[Tensor] = []

    def choose(text: list[int], row: Tensor) -> int:
        logits.append(row.clone())
        return int(row.argmax())

    settings = DecodeSettings(**{**vars(settings), "eos_token_ids": eos, "exact": exact})
    started = time.perf_counter()
    with torch.inference_mode():
        result = Decoding(model, prompt, settings, choose).run()
    return logits, len(result.token_ids) / len(result.accepted_lengths), time.perf_counter() - started


def cases(args: argparse.Namespace, dtype: str) -> Iterator[Case]:
    """The prompts, each with its model."""
    if args.model is None:
        yield from tiny_cases(args.prompts, getattr(torch, dtype), args.device)
        return
    loaded = load_for_measuring(args.model, args.new_tokens, dtype, args.device)
    for prompt in encode_prompts(load_samples(HumanEvalParams(dataset="humaneval", max_prompts=args.prompts)), loaded):
        yield loaded.model, prompt.token_ids, loaded.eos_token_ids


def tiny_cases(n: int, dtype: torch.dtype, device: str) -> Iterator[Case]:
    """Random models of the four families, prompts of 1 to 300 tokens of which some repeat themselves."""
    shape: dict[str, Any] = {
        "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    configs = [
        LlamaConfig(**shape, num_key_value_heads=4),
        Qwen2Config(**shape, num_key_value_heads=2),
        Qwen3Config(**shape, num_key_value_heads=2, head_dim=16),
        MistralConfig(**shape, num_key_value_heads=1, sliding_window=None),
    ]
    torch.manual_seed(0)
    tiny = [AutoModelForCausalLM.from_config(config).eval().to(dtype).to(device) for config in configs]
    draw = random.Random(0)
    for i in range(n):
        period = draw.choice([3, 17, 300])
        prompt = (draw.choices(range(64), k=period) * 100)[: draw.randint(1, 300)]
        yield tiny[i % len(tiny)], prompt, ()


if __name__ == "__main__":
    sys.exit(main())
