"""Self-speculation by layer skipping: the drafting model, the search for its layers, and what is kept of it."""

import gc
import json
import logging
import shutil
import weakref
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from pipeline.errors import UserError
from pipeline.fafo.attention import fafo_attention_on
from pipeline.fafo.decode import Decoding, generate
from pipeline.fafo.drafter import ModelPool
from pipeline.fafo.settings import DecodeSettings
from pipeline.selfspec_layers.draft import FILE_NAME, LayerSkip
from pipeline.selfspec_layers.search import Limits, Rehearsal, measured, rehearse, rehearsing, search
from pipeline.selfspec_layers.skipping import SkippedLayers, n_weights_read, skipping, twin_of
from tests.tiny import COMMON, CONFIGS, VOCABULARY, greedy, tiny_model

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
PROMPTS = [[3, 1, 4, 1, 5, 9], [2, 7, 1], [8]]
NOTHING = SkippedLayers(attention=(), mlp=())
LIMITS = Limits(n_trials=40, n_tokens=12, seed=1)
N_LAYERS = 5
FREE = SkippedLayers(attention=(1, 3), mlp=(1, 2))  # of `free_model`

some_layers = st.lists(st.integers(0, 1), max_size=2, unique=True).map(tuple)
any_set = st.builds(SkippedLayers, attention=some_layers, mlp=some_layers)


def random_model(n_layers: int = N_LAYERS) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**COMMON | {"num_hidden_layers": n_layers}, num_key_value_heads=2)).eval()


@pytest.fixture
def free_model() -> Any:
    """A model of whose sublayers some add nothing."""
    model = random_model()
    with torch.no_grad():
        for index in FREE.attention:
            model.model.layers[index].self_attn.o_proj.weight.zero_()
        for index in FREE.mlp:
            model.model.layers[index].mlp.down_proj.weight.zero_()
    return model


def logits_of(model: Any) -> Tensor:
    with torch.inference_mode():
        return model(IDS.to(model.device), use_cache=False).logits


@pytest.mark.parametrize("family", CONFIGS)
def test_nothing_skipped_is_the_same_model_and_something_is_another(family: str) -> None:
    model: Any = tiny_model(family)
    before = logits_of(model)
    state = {name: (weight.data_ptr(), weight.clone()) for name, weight in model.state_dict().items()}
    modules, implementation = list(map(id, model.modules())), model.config._attn_implementation

    assert torch.equal(logits_of(skipping(model, NOTHING)), before)
    everything = skipping(model, SkippedLayers(attention=(0, 1), mlp=(0, 1)))
    for attention, mlp in [((0,), ()), ((), (1,)), ((0,), (0,))]:
        drafting = skipping(model, SkippedLayers(attention=attention, mlp=mlp))
        assert not torch.allclose(logits_of(drafting), before)
        assert not torch.allclose(logits_of(drafting), logits_of(everything))

    hidden = model.base_model.norm(model.get_input_embeddings()(IDS.to(model.device)))
    torch.testing.assert_close(logits_of(everything), model.get_output_embeddings()(hidden))
    assert torch.equal(logits_of(model), before)
    assert (list(map(id, model.modules())), model.config._attn_implementation) == (modules, implementation)
    for name, weight in model.state_dict().items():
        assert weight.data_ptr() == state[name][0]
        assert torch.equal(weight, state[name][1])


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("kind", ["attention", "mlp"])
def test_a_skipped_sublayer_is_one_that_adds_nothing(family: str, kind: str) -> None:
    model: Any = tiny_model(family)
    silenced = deepcopy(model)
    layer: Any = silenced.base_model.layers[1]
    with torch.no_grad():
        (layer.self_attn.o_proj if kind == "attention" else layer.mlp.down_proj).weight.zero_()
    skipped = NOTHING.model_copy(update={kind: (1,)})
    torch.testing.assert_close(logits_of(skipping(model, skipped)), logits_of(silenced))


def test_weights_are_shared_and_keep_their_names() -> None:
    model = random_model()
    drafting = skipping(model, SkippedLayers(attention=(0, 2), mlp=(1, 2)))
    ours, theirs = dict(drafting.named_parameters()), dict(model.named_parameters())
    assert all(theirs[name] is parameter for name, parameter in ours.items())
    left_out = {name.rsplit(".", 1)[0].removesuffix("_proj") for name in theirs.keys() - ours.keys()}
    assert {name.split(".")[2] for name in left_out} == {"0", "1", "2"}
    assert len(theirs) - len(ours) == 2 * (4 + 1) + 2 * (3 + 1)  # projections and norm of each sublayer
    assert drafting.config is model.config
    n_layers_read = sum(p.numel() for name, p in ours.items() if "embed" not in name)
    assert n_weights_read(drafting) == n_layers_read


def test_a_tied_head_is_read_and_an_embedding_is_not() -> None:
    tied: Any = tiny_model("llama-gqa-tied")
    untied: Any = tiny_model("llama-mha")
    assert n_weights_read(tied) == sum(p.numel() for p in tied.parameters())
    embedding = untied.get_input_embeddings().weight.numel()
    assert n_weights_read(untied) == sum(p.numel() for p in untied.parameters()) - embedding


def test_one_object_for_each_model_and_set_that_ends_with_the_model() -> None:
    model = random_model(2)
    first = twin_of(model, FREE.model_copy(update={"attention": (1,), "mlp": ()}))
    assert twin_of(model, SkippedLayers(attention=(1,), mlp=())) is first
    assert twin_of(model, NOTHING) is not first
    ended = weakref.ref(model)
    del model, first
    gc.collect()
    assert ended() is None


def test_a_model_whose_modules_do_more_than_their_classes_say_is_refused() -> None:
    model = random_model(2)
    model.model.layers[1].forward = model.model.layers[1].forward  # as hooks of accelerate leave it
    with pytest.raises(UserError, match="spread over devices; use one device"):
        skipping(model, NOTHING)


@pytest.mark.parametrize("family", CONFIGS)
@hypothesis_settings(max_examples=15)
@given(
    skipped=any_set,
    gamma=st.integers(1, 6),
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20),
    n_new=st.integers(1, 25),
)
def test_tokens_and_cache_are_plain_decodings(
    family: str, skipped: SkippedLayers, gamma: int, prompt: list[int], n_new: int
) -> None:
    model = tiny_model(family)
    settings = DecodeSettings(n_new, drafter=LayerSkip(gamma, skipped))
    with torch.inference_mode():
        decoding = Decoding(model, prompt, settings)
        got = decoding.run()
        assert got.token_ids == greedy(model, prompt, n_new)
        if len(decoding.text) == 1 + len(prompt) == 2:
            return  # no entry that a prefill would make
        fresh = Decoding(model, decoding.text, DecodeSettings(1))
        with fafo_attention_on(model):
            fresh.prefill()
        assert decoding.cache.length == fresh.cache.length
        for layer in range(model.config.num_hidden_layers):
            for ours, theirs in zip(decoding.cache.entries(layer), fresh.cache.entries(layer), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_skipping_what_adds_nothing_drafts_what_the_model_says(free_model: PreTrainedModel) -> None:
    got = generate(free_model, [1, 2, 3], DecodeSettings(20, drafter=LayerSkip(3, FREE)))
    assert got.accepted_lengths == [4] * 5
    assert got.draft_passes == [3] * 5
    assert got.draft_cache_share == pytest.approx(1 - len(FREE.attention) / N_LAYERS)


def drafted(model: PreTrainedModel, skipped: SkippedLayers, text: list[int], n_prompt: int, gamma: int) -> list[bool]:
    """`Rehearsal.matches` by drafting: from each place where a guess begins, with the true tokens as earlier ones."""
    found = []
    settings = DecodeSettings(1, drafter=LayerSkip(gamma, skipped))
    for start in range(n_prompt, len(text), gamma):
        decoding = Decoding(model, text[:start], settings)
        with fafo_attention_on(model):
            decoding.prefill()
            assert isinstance(decoding.pool, ModelPool)
            for position in range(start, min(start + gamma, len(text))):
                token = decoding.pool._next(text[position - 1], position - 1)
                found.append(token == text[position])
    return found


@pytest.mark.parametrize("family", ["llama-mha", "qwen3-gqa-tied"])
@pytest.mark.parametrize("gamma", [1, 3])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_rehearsing_finds_what_drafting_would(family: str, gamma: int, prompt: list[int]) -> None:
    model = tiny_model(family)
    seen = set()
    with torch.inference_mode():
        rehearsal = rehearse(model, prompt, 20, gamma)
        assert rehearsal.text == prompt + greedy(model, prompt, 20)
        before = [[entries.clone() for entries in rehearsal.cache.entries(layer)] for layer in range(2)]
        for skipped in (NOTHING, SkippedLayers(attention=(1,), mlp=()), SkippedLayers(attention=(0,), mlp=(1,))):
            with rehearsing(model):
                matches = rehearsal.matches(skipping(model, skipped))
            assert matches == drafted(model, skipped, rehearsal.text, len(prompt), gamma)
            seen |= {tuple(matches)}
        for layer, entries in enumerate(before):
            assert all(map(torch.equal, entries, rehearsal.cache.entries(layer)))
    assert len(seen) > 1


def test_what_is_measured_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model()
    with torch.inference_mode():
        rehearsal = rehearse(model, [1, 2], 5, gamma=2)
    monkeypatch.setattr(Rehearsal, "matches", lambda *_: [True, True, False, True, False])
    skipped = SkippedLayers(attention=(0,), mlp=(0,))
    found = measured(model, skipped, [rehearsal])
    layer = sum(p.numel() for p in model.model.layers[0].parameters())
    read = sum(p.numel() for p in model.parameters()) - model.model.embed_tokens.weight.numel()
    assert found.matched == 3 / 5
    assert found.tokens_per_step == 1 + (2 + 1 + 0 + 1 + 0) / 5 == 1.8
    assert found.weights_read == (read - layer) / read
    assert found.speed == 1.8 / (2 * (read - layer) / read + 1)
    assert (found.attention, found.mlp, found.n_tokens, found.gamma, found.n_layers) == ((0,), (0,), 5, 2, N_LAYERS)


def test_a_search_finds_what_adds_nothing(free_model: PreTrainedModel) -> None:
    found = search(free_model, PROMPTS, 2, None, Limits(n_trials=120, n_tokens=30, seed=0))
    assert set(FREE.attention) <= set(found.attention)
    assert set(FREE.mlp) <= set(found.mlp)
    assert found.speed is not None
    assert found.speed > 1
    pair = search(free_model, PROMPTS, 2, 2 / (2 * N_LAYERS), Limits(n_trials=120, n_tokens=30, seed=0))
    assert (pair.attention, pair.mlp, pair.matched) == ((), FREE.mlp, 1), "an MLP has more weights than an attention"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n_trials", [1, 2, 25])
def test_a_search_is_deterministic_bounded_and_no_worse_than_the_whole_model(seed: int, n_trials: int) -> None:
    model = random_model()
    limits = Limits(n_trials, 12, seed)
    found = search(model, PROMPTS, 3, None, limits)
    assert search(model, PROMPTS, 3, None, limits) == found
    assert found.speed is not None
    assert found.speed >= 1
    assert found.n_trials == n_trials
    assert found.n_tokens == 12 * len(PROMPTS)


@pytest.mark.parametrize("skip_ratio", [0.0, 0.3, 1.0])
def test_the_published_way_skips_a_given_share(skip_ratio: float) -> None:
    found = search(random_model(), PROMPTS, 2, skip_ratio, LIMITS)
    assert len(found.attention) + len(found.mlp) == round(skip_ratio * 2 * N_LAYERS)


def test_the_search_leaves_the_model_as_it_was_and_stops_at_an_end(caplog: pytest.LogCaptureFixture) -> None:
    model = random_model()
    before, implementation = logits_of(model), model.config._attn_implementation
    first = greedy(model, PROMPTS[0], 1)
    model.generation_config.eos_token_id = first[0]
    found = search(model, PROMPTS[:1], 2, None, LIMITS)
    assert found.n_tokens == 1
    assert (model.config._attn_implementation, torch.equal(logits_of(model), before)) == (implementation, True)


def refuse() -> Sequence[list[int]]:
    raise AssertionError("asked for prompts")


def test_that_nothing_pays_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for skipped, n_said in ((SkippedLayers(attention=(1,), mlp=()), 0), (NOTHING, 1)):
        LayerSkip(2, skipped).prepare(random_model(), refuse, tmp_path)
        assert caplog.text.count("skips nothing, so it can't be faster") == n_said


def test_what_was_found_is_saved_resumed_and_used_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = random_model()
    settings = LayerSkip(2, n_trials=10, n_search_tokens=12)
    with caplog.at_level(logging.INFO, logger="pipeline.selfspec_layers"):
        prepared = settings.prepare(model, lambda: PROMPTS, tmp_path / "not there yet")
    assert caplog.text.count("drafting skips attention [") == 1
    assert "predicted speed" in caplog.text
    prepared.save(tmp_path)
    saved = json.loads((tmp_path / FILE_NAME).read_text())
    assert saved["gamma"] == 2
    assert saved["n_layers"] == N_LAYERS

    assert settings.prepare(model, refuse, tmp_path) == prepared
    other = tmp_path / "other"
    other.mkdir()
    by_file = LayerSkip(5, skipped_layers_file=str(tmp_path / FILE_NAME)).prepare(model, refuse, other)
    assert by_file == LayerSkip(5, prepared.skipped_layers)
    in_config: Any = saved
    assert LayerSkip(5, in_config).prepare(model, refuse, other) == by_file
    by_file.save(other)
    assert (other / FILE_NAME).read_bytes() == (tmp_path / FILE_NAME).read_bytes()
    plain: Any = {"attention": [1], "mlp": []}
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(plain))
    resumed = LayerSkip(5, skipped_layers_file=str(changed)).prepare(model, refuse, other)
    assert resumed == by_file, "what an earlier session of the run read counts"
    written = LayerSkip(5, plain).prepare(model, refuse, other)
    assert written == LayerSkip(5, plain), "what the config itself says counts, whatever lies in the folder"
    written.save(other)
    assert json.loads((other / FILE_NAME).read_text())["attention"] == [1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("{", "not valid JSON"),
        ("[1]", "found list"),
        ('{"attention": [1]}', "mlp: Field required; it should be a file that an earlier search left"),
        ('{"attention": [1], "mlp": [], "x": 1}', "x: Extra inputs are not permitted"),
        ('{"attention": [-1], "mlp": []}', "attention.0: Input should be greater than or equal to 0"),
        ('{"attention": [true], "mlp": []}', "attention.0: Input should be a valid integer"),
        ('{"attention": [1, 1], "mlp": []}', "attention: found [1, 1]; each layer should be named once"),
        ('{"attention": [], "mlp": [5]}', "mlp: found 5; the model's layers are 0 to 4"),
        (
            '{"attention": [], "mlp": [], "n_layers": 9, "model": "m"}',
            "for a model of 9 layers (m), and this one has 5",
        ),
    ],
)
def test_wrong_files_are_errors_of_a_line(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / FILE_NAME
    if content is not None:
        path.write_text(content)
    model = random_model()
    folders = [tmp_path / "new"] if content is None else [tmp_path / "new", tmp_path]
    for folder in folders:
        with pytest.raises(UserError) as error:
            LayerSkip(skipped_layers_file=str(path)).prepare(model, refuse, folder)
        key = "skipped_layers" if folder == tmp_path else "skipped_layers_file"
        assert str(error.value).startswith(f"{key}: {path}")
        assert message in str(error.value)
        assert "\n" not in str(error.value)


def test_wrong_settings_are_said() -> None:
    with pytest.raises(ValueError, match="found both; give one of them"):
        LayerSkip(4, NOTHING, "file.json")
    with pytest.raises(UserError, match="skipped_layers: found None; give a set"):
        generate(random_model(), [1], DecodeSettings(4, drafter=LayerSkip()))
    with pytest.raises(UserError, match=r"skipped_layers.attention: found 3; the model's layers are 0 to 1"):
        generate(random_model(2), [1], DecodeSettings(4, drafter=LayerSkip(2, FREE)))


def test_prompts_longer_than_a_search_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.selfspec_layers.search._MOST_CONTEXT", 8)
    text = list(range(20))
    with torch.inference_mode():
        rehearsal = rehearse(random_model(), text, 4, 2)
    assert (rehearsal.text[:8], rehearsal.n_prompt, rehearsal.n_rows) == (text[-8:], 8, 4)


@pytest.mark.skipif("config.getoption('--device') != 'cpu'", reason="this is about CPUs")
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ here")
@pytest.mark.parametrize(
    "skipped",
    [SkippedLayers(attention=(0,), mlp=(1,)), SkippedLayers(attention=(0, 1), mlp=(0, 1))],
    ids=["some", "all"],
)
def test_compiled(skipped: SkippedLayers, caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model("llama-gqa-tied")
    plain = generate(model, [1, 2, 3], DecodeSettings(20, drafter=LayerSkip(3, skipped)))
    with caplog.at_level(logging.WARNING):
        got = generate(model, [1, 2, 3], DecodeSettings(20, compile=True, drafter=LayerSkip(3, skipped)))
    assert (got.token_ids, got.accepted_lengths) == (plain.token_ids, plain.accepted_lengths)
    assert "uncompiled" not in caplog.text
