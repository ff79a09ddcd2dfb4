"""Show where the differences between plain decoding and FAFO come from, kernel by kernel, on this machine's CPU.

    python scripts/show_rounding.py [--dtype float32 bfloat16 float16] [--model FOLDER] [--shape 4096 14336]

A cell "=" is bit-identical; "5/32, 1e-06" means 5 of 32 rows are, and 1e-06 is the largest difference.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import linear
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from pipeline.common.logs import adopt_library_logs
from pipeline.common.models import load_model
from pipeline.common.schemas import BaselineParams
from pipeline.errors import UserError
from pipeline.fafo.decode import generate
from pipeline.fafo.partial import attend, merge
from pipeline.fafo.selectors import StreamLLM
from pipeline.fafo.settings import DecodeSettings

DTYPES = ("float32", "bfloat16", "float16")
SHAPES = ((576, 576), (1536, 576), (576, 49152))  # inputs, outputs
ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 128)
REFERENCE_ROWS = 32
N_KEYS, HEAD_DIM = 300, 64
QUERY, KEYS = (1, 9, 64, HEAD_DIM), (1, 3, N_KEYS, HEAD_DIM)  # batch, heads, rows; heads as in SmolLM2-135M
CUTS = (1, 64, 128, 150, 192, 256, 299)
FAFO: dict[str, Any] = {"level": 4, "window": 6, "num_guesses": 6, "selector": StreamLLM(num_init=4, num_local=60)}
PROMPT = "def is_prime(n):\n    for i in range(2, n):\n        if n % i == 0:\n            return False\n    return"
MEANINGS = {
    "linear": "A row of a product can depend on how many rows are computed with it: the shape chooses the kernel.",
    "attention": "So can a row of attention over the same keys, with a mask and without.",
    "merge": "Cache and new rows are summed apart: where the text is cut, which steps decide, changes a token's bits.",
    "decoding": "The default mode has all these differences; in exact mode there should be none, whatever was guessed.",
}


@dataclass(frozen=True)
class Difference:
    """How two lots of rows compare: rows that are bit-identical, rows compared, largest difference."""

    n_identical: int
    n_rows: int
    largest: float

    @classmethod
    def of(cls, a: Tensor, b: Tensor) -> "Difference":
        """Compare `a` and `b`, both [rows, n]."""
        per_row = (a.double() - b.double()).abs().amax(dim=1)
        return cls(int((per_row == 0).sum()), len(per_row), float(per_row.max()))

    def __str__(self) -> str:
        return "=" if self.n_identical == self.n_rows else f"{self.n_identical}/{self.n_rows}, {self.largest:.0e}"


Figures = dict[str, Difference]  # by what the row of a table is called


def linear_rows(shapes: Sequence[Sequence[int]], dtype: torch.dtype) -> Figures:
    """The first rows of a linear layer's output (variance 1), against those of `REFERENCE_ROWS` rows."""
    figures = {}
    for n_in, n_out in shapes:
        weight = (torch.randn(n_out, n_in) / n_in**0.5).to(dtype)
        rows = torch.randn(max(ROWS), n_in).to(dtype)
        expected = linear(rows[:REFERENCE_ROWS], weight)
        for n in ROWS:
            got = linear(rows[:n], weight)[:REFERENCE_ROWS]
            figures[f"{n_in}x{n_out}, {n} rows"] = Difference.of(got, expected[:n])
    return figures


def attention_rows(dtype: torch.dtype) -> Figures:
    """The first rows of attention over the same keys, against those of a call with `REFERENCE_ROWS` rows, no mask."""
    query, keys, values = (torch.randn(*shape).to(dtype) for shape in (QUERY, KEYS, KEYS))

    def output(n: int, masked: bool) -> Tensor:
        mask = torch.zeros(n, N_KEYS, dtype=dtype) if masked else None
        return attend(query[:, :, :n], (keys, values), HEAD_DIM**-0.5, mask)[0][0].transpose(0, 1).flatten(1)

    expected = output(REFERENCE_ROWS, masked=False)
    figures: Figures = {}
    for masked, label in ((False, "rows"), (True, "rows, masked")):
        calls = [Difference.of(output(n, masked)[:REFERENCE_ROWS], expected[:n]) for n in range(1, 65)]
        figures |= {f"{n} {label}": calls[n - 1] for n in ROWS if n <= 64}
        n_identical = sum(call.n_identical == call.n_rows for call in calls)
        figures[f"calls with 1..64 {label}"] = Difference(n_identical, 64, max(call.largest for call in calls))
    return figures


def merged_parts(dtype: torch.dtype) -> Figures:
    """Attention over keys cut in two parts and merged, against the same cut in the middle (first: not cut at all)."""
    query, keys, values = (torch.randn(*shape).to(dtype) for shape in (QUERY, KEYS, KEYS))

    def output(*cuts: int) -> Tensor:
        bounds = [0, *cuts, N_KEYS]
        parts = [(keys[:, :, a:b], values[:, :, a:b]) for a, b in pairwise(bounds)]
        merged = merge([attend(query, part, HEAD_DIM**-0.5) for part in parts]).to(dtype)
        return merged[0].transpose(0, 1).flatten(1)

    expected = output(N_KEYS // 2)
    figures = {"not cut": Difference.of(output(), expected)}
    return figures | {f"cut at {cut} of {N_KEYS}": Difference.of(output(cut), expected) for cut in CUTS}


def decoded_logits(name: str, model: PreTrainedModel, prompts: list[list[int]], n_new: int) -> Figures:
    """Logits of FAFO's output tokens against plain decoding's, as long as both have the same text."""
    figures = {}
    for mode in ("default", "exact"):
        plain = DecodeSettings(n_new, exact=mode == "exact")
        pairs = []
        for prompt in prompts:
            expected_text, expected = _logits(model, prompt, plain)
            text, logits = _logits(model, prompt, replace(plain, **FAFO))
            n_same = next((i for i, (a, b) in enumerate(zip(text, expected_text, strict=True)) if a != b), len(text))
            pairs.append((logits[: n_same + 1], expected[: n_same + 1]))
        got, wanted = (torch.cat(logits) for logits in zip(*pairs, strict=True))
        figures[f"{name}, {mode}"] = Difference.of(got, wanted)
    return figures


def _logits(model: PreTrainedModel, prompt: list[int], settings: DecodeSettings) -> tuple[list[int], Tensor]:
    rows: list[Tensor] = []

    def choose(text: list[int], logits: Tensor) -> int:
        rows.append(logits.clone())
        return int(logits.argmax())

    return generate(model, prompt, settings, choose).token_ids, torch.stack(rows)


def tiny_model(dtype: torch.dtype) -> PreTrainedModel:
    """A small Llama with random weights."""
    config = LlamaConfig(64, 128, 192, 2, 4, 2, initializer_range=0.2)  # vocabulary, sizes, layers, heads, KV heads
    return LlamaForCausalLM(config).eval().to(dtype)


def measure(dtype_name: str, shapes: Sequence[Sequence[int]], model_name: str | None, n_new: int) -> dict[str, Figures]:
    """All figures of one dtype, by table."""
    dtype: torch.dtype = getattr(torch, dtype_name)
    torch.manual_seed(0)
    prompts = torch.randint(64, (4, 24)).tolist()
    decoding = decoded_logits("tiny random model", tiny_model(dtype), prompts, n_new)
    if model_name:
        params = {"method": "baseline", "model_name": model_name, "n_new_tokens": n_new, "dtype": dtype_name}
        loaded = load_model(BaselineParams.model_validate(params | {"device": "cpu"}))
        decoding |= decoded_logits(Path(model_name).name, loaded.model, [loaded.tokenizer(PROMPT)["input_ids"]], n_new)
    with torch.inference_mode():
        linear_layers, attention, merged = linear_rows(shapes, dtype), attention_rows(dtype), merged_parts(dtype)
    return {"linear": linear_layers, "attention": attention, "merge": merged, "decoding": decoding}


def report(figures: dict[str, dict[str, Figures]]) -> None:
    """Print a table of each kind, with a column for each dtype."""
    console = Console()
    cpu = torch.backends.cpu.get_cpu_capability()
    console.print(f"torch {torch.__version__}, {cpu}, threads: {torch.get_num_threads()}")
    for kind, meaning in MEANINGS.items():
        by_dtype = [figures[dtype][kind] for dtype in figures]
        table = Table(kind, *figures)
        for name in by_dtype[0]:
            table.add_row(name, *(str(column[name]) for column in by_dtype))
        console.print(table, meaning + "\n", sep="\n")


def main() -> int:
    """Measure, print and optionally write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=DTYPES, help="one or more; all by default")
    parser.add_argument("--shape", nargs=2, type=int, action="append", default=[], help="one more linear layer")
    parser.add_argument("--model", help="a model's folder or hub id, to decode with as well")
    parser.add_argument("--n_new_tokens", type=int, default=64, help="tokens to decode")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()
    adopt_library_logs()
    try:
        figures = {dtype: measure(dtype, [*SHAPES, *args.shape], args.model, args.n_new_tokens) for dtype in args.dtype}
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    report(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, default=asdict, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
