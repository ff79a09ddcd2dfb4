"""Check on a real model that FAFO's tokens are those of transformers' own greedy `generate`.

    python scripts/check_exactness.py [--model models/SmolLM2-135M-Instruct] [--prompts 20] [--new-tokens 128]

FAFO-Stream and FAFO-Quest at three settings of (level, window, num_guesses), on HumanEval. Exit code 1 if any token
differs.
"""

import argparse
import sys
from itertools import product

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from eval.humaneval.load import HumanEvalParams
from pipeline.common.models import load_for_measuring
from pipeline.common.prompts import encode_prompts, load_samples
from pipeline.fafo.decode import generate
from pipeline.fafo.selectors import Quest, Selector, StreamLLM
from pipeline.fafo.settings import DecodeSettings, Generation

SELECTORS: tuple[Selector, ...] = (
    StreamLLM(num_init=4, num_local=60),
    Quest(page_size=16, top_k=4, update_interval=4),
)
LEVEL_WINDOW_GUESSES = ((5, 15, 15), (4, 6, 6), (3, 3, 2))


def main() -> int:
    """Decode every prompt both ways and print how many outputs are identical."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/SmolLM2-135M-Instruct", help="hub id or folder")
    parser.add_argument("--prompts", type=int, default=20, help="HumanEval problems, from the first")
    parser.add_argument("--new-tokens", type=int, default=128, help="most tokens to generate")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32", help="of the model")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    args = parser.parse_args()

    loaded = load_for_measuring(str(args.model), args.new_tokens, args.dtype, args.device)
    model = loaded.model
    prompts = encode_prompts(load_samples(HumanEvalParams(dataset="humaneval", max_prompts=args.prompts)), loaded)
    table = Table("selector", "level, window, guesses", "tau", "identical", "first difference (prompt, position)")
    methods = list(product(SELECTORS, LEVEL_WINDOW_GUESSES))
    got: list[list[Generation]] = [[] for _ in methods]
    expected = []
    for prompt in track(prompts, "Prompts"):
        ids = torch.tensor([prompt.token_ids], device=model.device)
        output = model.generate(  # type: ignore[operator]
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=args.new_tokens, do_sample=False
        )
        expected.append(output[0, ids.shape[1] :].tolist())
        for results, (selector, (level, window, num_guesses)) in zip(got, methods, strict=True):
            settings = DecodeSettings(
                args.new_tokens, loaded.eos_token_ids, level, window, num_guesses, selector=selector
            )
            results.append(generate(model, prompt.token_ids, settings))

    all_identical = True
    for results, (selector, level_window_guesses) in zip(got, methods, strict=True):
        differing = [
            (
                prompt.sample.id,
                next((i for i, (a, b) in enumerate(zip(r.token_ids, e, strict=False)) if a != b), "length"),
            )
            for prompt, r, e in zip(prompts, results, expected, strict=True)
            if r.token_ids != e
        ]
        tau = sum(len(r.token_ids) for r in results) / sum(len(r.accepted_lengths) for r in results)
        n_identical = f"{len(prompts) - len(differing)}/{len(prompts)}"
        table.add_row(
            type(selector).__name__, str(level_window_guesses), f"{tau:.2f}", n_identical, str(differing[:1] or "")
        )
        all_identical &= not differing
    Console().print(table)
    return 0 if all_identical else 1


if __name__ == "__main__":
    sys.exit(main())
