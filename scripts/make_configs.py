"""Write the pipeline config and the launcher of every combination of dataset, model, method and KV method.

    python scripts/make_configs.py            write them
    python scripts/make_configs.py --check    write nothing; name what differs from the tables below, exit code 1

The tables are all there is to change. Another model is a line in MODELS, another dataset one in DATASETS (with a folder
in eval/ and a config in config/eval_config/), another KV method one in KV_METHODS, another way to decode one in METHODS
(with a folder in pipeline/). Files that the tables no longer give are named and left for you to delete.
"""

import argparse
import json
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Keys = Mapping[str, Any]


@dataclass(frozen=True)
class Model:
    """What configs say of a model.

    most_new_tokens: for one that is too slow for what datasets allow.
    methods, kv_methods: keys in place of METHODS' and KV_METHODS', or beside them, by method and by KV method.
    """

    model_name: str
    dtype: str = "float16"
    most_new_tokens: int | None = None
    chat_template_kwargs: Keys = field(default_factory=dict)
    methods: Mapping[str, Keys] = field(default_factory=dict)
    kv_methods: Mapping[str, Keys] = field(default_factory=dict)


@dataclass(frozen=True)
class Dataset:
    """What configs say of a dataset, and its name in comments."""

    title: str
    n_new_tokens: int


@dataclass(frozen=True)
class KvMethod:
    """A KV method's name in comments, and its own keys.

    lossy: keys of the lossy pipeline, in place of these or beside them: there a method is as its paper has it.
    """

    title: str
    keys: Keys
    lossy: Keys = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A way to decode: its name in comments, in which {} is the KV method's, and its own keys.

    kv_methods: those that it is run with; none if it needs none.
    """

    title: str
    keys: Keys = field(default_factory=dict)
    kv_methods: Collection[str] = ()


MODELS = {
    "Llama-3.1-8B-Instruct": Model("meta-llama/Llama-3.1-8B-Instruct"),
    # Its chat template puts in today's date, so that prompts would differ from day to day. This is Llama-3.1's date.
    "Llama-3.2-3B-Instruct": Model(
        "meta-llama/Llama-3.2-3B-Instruct", chat_template_kwargs={"date_string": "26 Jul 2024"}
    ),
    "Qwen2.5-7B-Instruct": Model("Qwen/Qwen2.5-7B-Instruct"),
    # It would think through all of its new tokens and give no answer.
    "Qwen3-8B": Model("Qwen/Qwen3-8B", chat_template_kwargs={"enable_thinking": False}),
    # For CPUs: few tokens, no row that does not pay, and a cache that is compressed even beside short prompts. What
    # verifies guesses that cost nothing has as many as were measured to be fastest there, or the planner.
    "SmolLM2-135M-Instruct": Model(
        "models/SmolLM2-135M-Instruct",
        dtype="float32",
        most_new_tokens=256,
        methods={
            "fafo": {"pool": "ranked", "planner": "auto"},
            "lookahead": {"planner": "auto"},
            "prompt_lookup": {"prompt_lookup_num_tokens": 7},
            "token_recycling": {"n_tree_rows": 15},
            "selfspec_kv": {"gamma": 3},
        },
        kv_methods={
            "stream-llm": {"num_local": 60},
            "quest": {"top_k": 4, "update_interval": 4},
            "h2o": {"budget": 64, "update_interval": 4},
            "tova": {"budget": 64, "update_interval": 4},
            "snapkv": {"budget": 64, "window_size": 16},
            "pyramidkv": {"budget": 64, "beta": 8},  # what leaves the last layer its window
            "fastkv": {"kv_retention_rate": 0.25},
            "fastgen": {"update_interval": 4},
        },
    ),
}
DATASETS = {
    "gsm8k": Dataset("GSM8K", 512),
    "humaneval": Dataset("HumanEval", 512),
    "mtbench": Dataset("MT-Bench", 1024),  # a turn
    "longbench": Dataset("LongBench", 512),  # the longest of its subsets' own limits, which hold too
    "passkey": Dataset("passkey retrieval", 160),  # what its keys of 64 digits may take
    "longtext": Dataset("long texts", 128),
    "specbench": Dataset("Spec-Bench", 1024),  # a turn
}
EACH_STEP = {"update_interval": 1}
KV_METHODS = {
    "stream-llm": KvMethod("Stream", {"num_init": 4, "num_local": 252}),
    "quest": KvMethod("Quest", {"page_size": 16, "top_k": 16, "update_interval": 8}, lossy=EACH_STEP),
    "h2o": KvMethod("H2O", {"budget": 256, "recent": 0.5, "update_interval": 8}, lossy=EACH_STEP),
    "tova": KvMethod("TOVA", {"budget": 256, "update_interval": 8}, lossy=EACH_STEP),
    "snapkv": KvMethod("SnapKV", {"budget": 256, "window_size": 32, "kernel_size": 5}),
    "pyramidkv": KvMethod("PyramidKV", {"budget": 256, "window_size": 8, "kernel_size": 5, "beta": 20}),
    "fastkv": KvMethod(
        "FastKV",
        {"kv_retention_rate": 0.1, "window_size": 8, "kernel_size": 7, "num_init": 4},
        lossy={"tsp_layer": None, "tsp_rate": 0.2},  # after the middle layer, which is the paper's
    ),
    "fastgen": KvMethod(
        "FastGen",
        {"target": 0.95, "local_ratio": 0.3, "frequent_ratio": 0.3, "update_interval": 8},
        lossy=EACH_STEP,
    ),
}
LOOKAHEAD = {"level": 5, "window": 15, "num_guesses": 15, "pool_from_prompt": True, "pool_from_output": True}
METHODS = {
    "baseline": Method("Standard auto-regressive decoding"),
    "fafo": Method("FAFO-{}", LOOKAHEAD, KV_METHODS),
    "lossy": Method("Lossy {}", kv_methods=KV_METHODS),
    # Its paper's window and guesses for models of 7B; it has fewer for larger ones, and names none smaller.
    "lookahead": Method("Lookahead decoding", LOOKAHEAD),
    "prompt_lookup": Method("Prompt lookup", {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 2}),
    "token_recycling": Method("Token recycling", {"n_successors": 8, "n_tree_rows": 80}),
    "selfspec_kv": Method(
        "Self-speculation by the KV view of {}", {"gamma": 4}, kv_methods=("stream-llm", "snapkv", "quest")
    ),
    "selfspec_layers": Method(
        "Self-speculation by layer skipping",
        {"gamma": 4, "skip_ratio": None, "n_trials": 60, "n_search_tokens": 32},
    ),
}
OWNED = ("config/pipeline_config/**/*", *(f"scripts/*/{method}/*" for method in METHODS))  # nothing else lies there
EXCEPTIONS: Mapping[tuple[str, str], Keys] = {
    # A summary that is cut off at half of its subset's limit has another score.
    ("longbench", "SmolLM2-135M-Instruct"): {"n_new_tokens": 512},
}


def combinations() -> Iterator[tuple[str, str, str, str | None]]:
    """Dataset, model, method and KV method, of which some methods have none."""
    for dataset in DATASETS:
        for model in MODELS:
            for name, method in METHODS.items():
                for kv_method in method.kv_methods or (None,):
                    yield dataset, model, name, kv_method


def pipeline_params(dataset: str, model: str, method: str, kv_method: str | None) -> dict[str, Any]:
    """The `pipeline_params` of one combination."""
    params, chosen = MODELS[model], DATASETS[dataset]
    shared = {
        "model_name": params.model_name,
        "dtype": params.dtype,
        "device": "auto",
        "batch_size": 1,
        "seed": 42,
        "n_new_tokens": min(chosen.n_new_tokens, params.most_new_tokens or chosen.n_new_tokens),
    }
    if params.chat_template_kwargs:
        shared["chat_template_kwargs"] = dict(params.chat_template_kwargs)
    shared |= EXCEPTIONS.get((dataset, model), {})
    of_view: dict[str, Any] = {}
    if kv_method is not None:
        of_view = {**KV_METHODS[kv_method].keys, **params.kv_methods.get(kv_method, {})}
        of_view |= KV_METHODS[kv_method].lossy if method == "lossy" else {}
    return {
        "method": method,
        **({} if kv_method is None else {"kv_method": kv_method}),
        **shared,
        **METHODS[method].keys,
        **params.methods.get(method, {}),
        **of_view,
    }


def launcher(dataset: str, model: str, method: str, kv_method: str | None) -> str:
    """The script that runs one combination."""
    title = METHODS[method].title.format("" if kv_method is None else KV_METHODS[kv_method].title)
    return (
        "#!/usr/bin/env bash\n"
        f"# {title} on {DATASETS[dataset].title}. Arguments: <gpu_id> <output_dir> [more for main.py]\n"
        'exec bash "$(dirname "${BASH_SOURCE[0]}")/../../launch.sh" '
        f'{dataset} {method} {model} "{kv_method or ""}" "$@"\n'
    )


def files() -> Iterator[tuple[str, str]]:
    """Each file's path from the repository root, and its text."""
    for dataset, model, method, kv_method in combinations():
        folder = "/".join(filter(None, ["config/pipeline_config", method, dataset, model, kv_method]))
        params = {"pipeline_params": pipeline_params(dataset, model, method, kv_method)}
        yield f"{folder}/default.json", json.dumps(params, indent=4) + "\n"
        name = "_".join(filter(None, [model, (kv_method or "").replace("-", "")]))
        yield f"scripts/{dataset}/{method}/{name}.sh", launcher(dataset, model, method, kv_method)


def mode(name: str) -> int:
    """A file's permissions; of them, git keeps whether it can be executed."""
    return 0o755 if name.endswith(".sh") else 0o644


def write(root: Path) -> None:
    """Write all files below `root`."""
    for name, text in files():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(mode(name))


def differences(root: Path) -> list[str]:
    """A line for each file below `root` that is not as the tables have it."""
    expected = dict(files())
    lines = []
    for name, text in expected.items():
        path = root / name
        if not path.is_file():
            lines.append(f"{name}: missing")
        elif path.read_bytes() != text.encode():
            lines.append(f"{name}: not what the tables give")
        elif (path.stat().st_mode ^ mode(name)) & 0o100:
            lines.append(f"{name}: {'not ' if mode(name) & 0o100 else ''}executable")
    found = {path.relative_to(root).as_posix() for glob in OWNED for path in root.glob(glob) if not path.is_dir()}
    lines += [f"{name}: in no table; delete it" for name in found - expected.keys()]
    return sorted(lines)


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    """Write or check; 1 if files differ, or are left over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, name differences")
    args = parser.parse_args(argv)
    if not args.check:
        write(root)
    lines = differences(root)
    sys.stderr.writelines(f"{line}\n" for line in lines)
    if lines and args.check:
        sys.stderr.write("error: change the tables in scripts/make_configs.py, then run it\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
