"""Made-up runs of FAFO, of all its opponents and of a lossy method, whose speedups are plain."""

from pathlib import Path
from typing import Any

from pipeline.common.records import PromptResult
from tests.figure_runs import QUEST, STREAM, result, write_run

LENGTHS = (256, 512, 960)
METHODS: dict[str, dict[str, Any] | None] = {
    "baseline": None,
    "fafo-stream-llm": STREAM,
    "fafo-quest": QUEST,
    "lookahead": {"method": "lookahead", "level": 5, "window": 15, "num_guesses": 15},
    "prompt_lookup": {"method": "prompt_lookup"},
    "token_recycling": {"method": "token_recycling"},
    "selfspec_kv-stream-llm": STREAM | {"method": "selfspec_kv"},
    "selfspec_kv-quest": QUEST | {"method": "selfspec_kv"},
    "selfspec_kv-snapkv": {"method": "selfspec_kv", "kv_method": "snapkv", "budget": 0.2},
    "selfspec_layers": {"method": "selfspec_layers"},
    "lossy-quest": QUEST | {"method": "lossy"},
}
IN_ORDER = [
    "baseline", "fafo-quest", "lossy-quest", "fafo-stream-llm", "lookahead", "prompt_lookup", "token_recycling",
    "selfspec_kv-quest", "selfspec_kv-snapkv", "selfspec_kv-stream-llm", "selfspec_layers",
]  # fmt: skip


def speedup(method: str, dataset: str, length: int) -> float:
    """Prompt lookup is twice as fast on longtext as elsewhere, FAFO with Quest faster with each length."""
    if method == "baseline":
        return 1.0
    if method == "fafo-quest" and dataset == "longtext":
        return 2.0 + 0.25 * LENGTHS.index(length)
    return 4.0 if method == "prompt_lookup" and dataset == "longtext" else 2.0


def line(method: str, dataset: str, key: str, length: int) -> PromptResult:
    """Of a prompt with so many tokens: 12 new tokens in 12 s of plain decoding."""
    accepted = [1] * 12 if method in ("baseline", "lossy-quest") else [3] * 4
    drafts, window = method.startswith("selfspec"), method.startswith(("fafo", "lookahead"))
    n_steps = len(accepted)
    return result(
        *(key, length, 12.0 / speedup(method, dataset, length), accepted),
        group=str(length) if dataset == "longtext" else None,
        verified_rows=[1 if n_steps == 12 else 5] * n_steps,
        window_rows=[60 if window else 0] * n_steps,
        draft_passes=[3, 4, 4, 4] if drafts else [0] * n_steps,
        draft_cache_share=0.25 if drafts else None,
        extra_bytes=2**20 * (len(key) + 1),
        window_cache_tokens=50.0 if window else None,
        seen_cache_tokens=10.0 if method == "lossy-quest" else None,
    )


def write_opponents(folder: Path, datasets: tuple[str, ...] = ("gsm8k", "longtext")) -> Path:
    """A run of each method on each dataset; longtext has two prompts of each length."""
    for dataset in datasets:
        for name, method in METHODS.items():
            keys = [(f"{length}-{i}", length) for length in LENGTHS for i in (0, 1)]
            if dataset != "longtext":
                keys = [("a", 256), ("b", 300), ("long", 600)]
            write_run(folder / dataset / name, [line(name, dataset, *key) for key in keys], method, dataset)
    return folder
