"""A tiny saved model, a small dataset and the two configs: what an end-to-end run needs, made in a moment."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parents[1]
MAX_LENGTH = 512
CHAT_TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}<assistant>"


def save_tiny_model(folder: Path, chat_template: str | None = CHAT_TEMPLATE, **generation: Any) -> Path:
    """A random Llama over bytes, without an EOS unless `generation` (its generation config) says so."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_only = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_only)
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(alphabet),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_LENGTH,
        initializer_range=0.25,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    for name, value in generation.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    return folder


def row(number: int) -> dict[str, str]:
    """A row like HumanEval's."""
    prompt = f'def f{number}(x):\n    """Return x + {number}."""\n'
    return {
        "task_id": f"Tiny/{number}",
        "prompt": prompt,
        "entry_point": f"f{number}",
        "test": "def check(f): pass",
    }


def write_rows(path: Path, n_rows: int) -> Path:
    path.write_text("".join(json.dumps(row(i)) + "\n" for i in range(n_rows)))
    return path


class Case:
    """The files of one experiment in a folder, free to be spoilt by a test."""

    def __init__(self, folder: Path, model: Path | str, n_rows: int = 3) -> None:
        self.folder = folder
        self.output = folder / "out" / "run"
        self.pipeline: dict[str, Any] = {
            "method": "fafo", "kv_method": "stream-llm", "model_name": str(model), "dtype": "float32",
            "device": "cpu", "n_new_tokens": 12, "level": 3, "window": 3, "num_guesses": 2,
            "num_init": 2, "num_local": 8,
        }  # fmt: skip
        rows = write_rows(folder / "rows.jsonl", n_rows)
        self.eval: dict[str, Any] = {"dataset": "humaneval", "dataset_path": str(rows)}
        self.pipeline_file = folder / "pipeline.json"
        self.eval_file = folder / "eval.json"
        self.write()

    def write(self) -> None:
        self.pipeline_file.write_text(json.dumps({"pipeline_params": self.pipeline}))
        self.eval_file.write_text(json.dumps({"eval_params": self.eval}))

    def to_baseline(self) -> None:
        keys = ("model_name", "dtype", "device", "n_new_tokens")
        self.pipeline = {"method": "baseline", **{key: self.pipeline[key] for key in keys}}
        self.write()

    def to_lossy(self, kv_method: str = "stream-llm", **keys: Any) -> None:
        """keys: the selector's; without any those of StreamLLM."""
        self.to_baseline()
        self.pipeline |= {"method": "lossy", "kv_method": kv_method}
        self.pipeline |= keys if keys or kv_method != "stream-llm" else {"num_init": 2, "num_local": 8}
        self.write()

    def argv(self, *more: str) -> list[str]:
        return [
            "--exp_desc", "a tiny run",
            "--pipeline_config_dir", str(self.pipeline_file),
            "--eval_config_dir", str(self.eval_file),
            "--output_folder_dir", str(self.output),
            *more,
        ]  # fmt: skip

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.output / "raw_results.jsonl").read_text().splitlines()]

    def record(self) -> dict[str, Any]:
        return json.loads((self.output / "output_config.json").read_text())


def command(*arguments: str, interpreter: tuple[str, ...] = (sys.executable,)) -> list[str]:
    """A command line that runs FAFO's main.py as users do."""
    return [*interpreter, str(ROOT / "pipeline" / "fafo" / "main.py"), *arguments]


def run_command(arguments: list[str], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=120)
