"""FastKV with Token-Selective Propagation, against the model's layers run by hand on the tokens that go on."""

import json
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, PreTrainedModel

from pipeline.errors import UserError
from pipeline.fafo.attention import fafo_attention_on
from pipeline.fafo.decode import Decoding, generate
from pipeline.fafo.selectors import FastKV
from pipeline.fafo.settings import DecodeSettings
from pipeline.lossy.fastkv import TokenSelectivePropagation
from scripts.speedup import bench_fastkv
from tests.reference import dense_attention
from tests.tiny import CONFIGS, DEVICE, MAX_LENGTH, VOCABULARY, greedy, tiny_model

N_LAYERS = 4
EPSILON = 1e-5  # of float32 saliencies, by which tokens may change places

tokens = st.integers(0, VOCABULARY - 1)
selectors = st.builds(
    TokenSelectivePropagation,
    kv_retention_rate=st.floats(0.01, 1),
    window_size=st.integers(1, 9),
    kernel_size=st.sampled_from([1, 3, 7]),
    num_init=st.integers(0, 4),
    tsp_layer=st.none() | st.integers(0, N_LAYERS - 1),
    tsp_rate=st.floats(0.01, 1),
)


@cache
def deep_model(family: str) -> PreTrainedModel:
    """Like the tiny model of that family, with layers enough to have several behind the TSP layer."""
    config = CONFIGS[family]()
    deep = config.to_dict() | {"num_hidden_layers": N_LAYERS, "layer_types": None}
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(type(config).from_dict(deep)).eval().to(DEVICE)
    model.generation_config.pad_token_id = 0
    return model


def some_prompt(n: int, seed: int = 0) -> list[int]:
    return torch.randint(VOCABULARY, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def lossy(selector: FastKV, n_new: int = 8) -> DecodeSettings:
    return DecodeSettings(n_new, selector=selector, lossy=True)


class ByHand:
    """The model, layer by layer, each with entries for tokens of its own."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.body: Any = model.base_model
        self.keys: list[Tensor] = []  # of each layer, [1, kv_heads, n, head_dim]
        self.values: list[Tensor] = []
        self.queries: list[Tensor] = []  # of the prompt

    def angles(self, positions: list[int]) -> tuple[Tensor, Tensor]:
        """Cosines and sines, [1, n, head_dim]."""
        return self.body.rotary_emb(self.body.norm.weight, torch.tensor([positions], device=self.model.device))

    def embed(self, ids: list[int]) -> Tensor:
        return self.body.embed_tokens(torch.tensor([ids], device=self.model.device))

    def read(self, ids: list[int], positions_of: list[list[int]]) -> None:
        """Run the prompt; layer i has only the tokens `positions_of[i]`, which layer i - 1 had too."""
        hidden, before = self.embed(ids), list(range(len(ids)))
        for layer, positions in enumerate(positions_of):
            hidden = hidden[:, [before.index(p) for p in positions]]
            causal = torch.ones(len(positions), len(positions), dtype=torch.bool, device=hidden.device).tril()
            self.keys.append(self.nothing(layer))
            self.values.append(self.nothing(layer))
            self.queries.append(self.nothing(layer))
            hidden = self.layer(layer, hidden, positions, causal[None])
            before = positions

    def step(self, token: int, position: int, kept: list[list[list[int]]]) -> int:
        """The next token; layer i sees in its KV head h the entries `kept[i][h]`."""
        hidden = self.embed([token])
        for layer, of_heads in enumerate(kept):
            n = self.keys[layer].shape[2] + 1
            visible = torch.zeros(len(of_heads), 1, n, dtype=torch.bool, device=hidden.device)
            for head, entries in enumerate(of_heads):
                visible[head, 0, [*entries, n - 1]] = True
            group = self.model.config.num_attention_heads // len(of_heads)
            hidden = self.layer(layer, hidden, [position], visible.repeat_interleave(group, dim=0))
        logits = self.model.get_output_embeddings()(self.body.norm(hidden))
        return int(logits[0, 0].argmax())

    def nothing(self, layer: int) -> Tensor:
        attention = self.body.layers[layer].self_attn
        return torch.empty(1, self.model.config.num_key_value_heads, 0, attention.head_dim, device=self.model.device)

    def layer(self, number: int, hidden: Tensor, positions: list[int], visible: Tensor) -> Tensor:
        """Run a layer; its new entries join those it has. visible: [heads, rows, entries]."""
        layer = self.body.layers[number]
        attention, normed = layer.self_attn, layer.input_layernorm(hidden)
        query, key, value = (
            project(normed).unflatten(-1, (-1, attention.head_dim))
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if hasattr(attention, "q_norm"):
            query, key = attention.q_norm(query), attention.k_norm(key)
        query, key = (turned(t.transpose(1, 2), *self.angles(positions)) for t in (query, key))
        self.queries[number] = query
        self.keys[number] = torch.cat([self.keys[number], key], dim=2)
        self.values[number] = torch.cat([self.values[number], value.transpose(1, 2)], dim=2)
        seen = dense_attention(query, self.keys[number], self.values[number], visible, attention.head_dim**-0.5)
        hidden = hidden + attention.o_proj(seen.transpose(1, 2).flatten(2))
        return hidden + layer.mlp(layer.post_attention_layernorm(hidden))

    def saliency(self, layer: int, selector: FastKV) -> list[list[float]]:
        """Of each entry of the prompt by KV head, straight from the definition; infinite for sinks and window."""
        query, keys = self.queries[layer], self.keys[layer]
        n, group = keys.shape[2], query.shape[1] // keys.shape[1]
        before_window = max(n - selector.window_size, 0)
        of_heads = [[0.0] * before_window for _ in range(keys.shape[1])]
        for head in range(query.shape[1]):
            for row in range(before_window, n):
                scores = query[0, head, row] @ keys[0, head // group, : row + 1].T * query.shape[-1] ** -0.5
                for p, weight in enumerate(scores.softmax(0).tolist()[:before_window]):
                    of_heads[head // group][p] += weight
        reach = selector.kernel_size // 2
        pooled = [
            [sum(raw[max(p - reach, 0) : p + reach + 1]) / selector.kernel_size for p in range(before_window)]
            for raw in of_heads
        ]
        always = [float("inf")]
        return [
            [*always * min(selector.num_init, n), *of_head[selector.num_init :], *always * n][:before_window]
            + always * (n - before_window)
            for of_head in pooled
        ]


def turned(t: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of [1, heads, n, head_dim]."""
    first, second = t.chunk(2, dim=-1)
    return t * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]


def assert_highest(chosen: list[int], scores: list[float], n: int) -> None:
    """That these are `n` positions with the highest scores, ascending."""
    assert chosen == sorted(set(chosen)) and len(chosen) == n
    left_out = set(range(len(scores))) - set(chosen)
    assert not left_out or max(scores[p] for p in left_out) <= min(scores[p] for p in chosen) + EPSILON


def inputs_of_layers(decoding: Decoding) -> list[dict[str, Any]]:
    """Fill the cache; return what each layer was given."""
    given_to: list[dict[str, Any]] = []

    def note(layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        given_to.append(kwargs | {"hidden_states": args[0]})

    with ExitStack() as stack:
        stack.enter_context(fafo_attention_on(decoding.model))
        for layer in decoding.model.base_model.layers:  # type: ignore[union-attr]
            stack.enter_context(layer.register_forward_hook(note, with_kwargs=True))
        decoding.prefill()
    return given_to


def visible_entries(decoding: Decoding) -> list[list[list[int]]]:
    """What a step sees in each layer and KV head; the views are asked with values that are their own places."""
    seen = []
    for layer, view in enumerate(decoding.views):
        keys, values = decoding.cache.entries(layer)
        places = torch.arange(keys.shape[2], device=keys.device)[None, None, :, None].expand_as(values)
        taken = [part[1][0, :, :, 0] for part in view.select(keys, keys, places) if not isinstance(part, list)]
        seen.append(torch.cat(taken, dim=1).sort().values.tolist())
    return seen


@pytest.mark.parametrize("family", CONFIGS)
@hypothesis_settings(max_examples=25)
@given(n=st.integers(2, 50), seed=st.integers(0, 99), selector=selectors)
@torch.inference_mode()
def test_layers_read_and_keep_what_the_definition_says(
    family: str, n: int, seed: int, selector: TokenSelectivePropagation
) -> None:
    model, prompt = deep_model(family), some_prompt(n + 1, seed)
    by_hand, decoding = ByHand(model), Decoding(model, prompt, lossy(selector))
    given_to = inputs_of_layers(decoding)
    rows = [given["position_ids"][0].tolist() for given in given_to]
    by_hand.read(prompt[:-1], rows)

    last_full = N_LAYERS // 2 - 1 if selector.tsp_layer is None else selector.tsp_layer
    always_kept = max(selector.num_init + selector.window_size, 1)
    saliency = torch.tensor(by_hand.saliency(last_full, selector)).sum(dim=0).tolist()
    for layer in range(N_LAYERS):
        if layer <= last_full:
            assert rows[layer] == list(range(n))
        else:
            assert_highest(rows[layer], saliency, min(n, max(round(selector.tsp_rate * n), always_kept)))
            assert rows[layer] == rows[last_full + 1]
        n_rows = len(rows[layer])
        assert n_rows == selector.rows_of_layers(n, N_LAYERS)[layer]
        assert given_to[layer]["hidden_states"].shape[1] == n_rows
        assert all(map(torch.equal, given_to[layer]["position_embeddings"], by_hand.angles(rows[layer])))
        keys = decoding.cache.entries(layer)[0]
        assert keys.shape[2] == n
        torch.testing.assert_close(keys[:, :, :n_rows], by_hand.keys[layer], rtol=1e-4, atol=1e-4)

    first, later = visible_entries(decoding), visible_entries(decoding)
    for layer, of_heads in enumerate(later):
        n_rows = len(rows[layer])
        assert first[layer] == [list(range(n_rows))] * model.config.num_key_value_heads
        n_kept = min(n_rows, max(round(selector.kv_retention_rate * n), always_kept))
        for kept, of_head in zip(of_heads, by_hand.saliency(layer, selector), strict=True):
            assert_highest(kept, of_head, n_kept)

    decoding = Decoding(model, prompt, lossy(selector, n_new=4))
    got = decoding.run()
    token, expected = prompt[-1], []
    for number in range(4):
        seen = [
            [[*kept, *range(len(rows[layer]), len(rows[layer]) + number)] for kept in of_heads]
            for layer, of_heads in enumerate(later if number else first)
        ]
        token = by_hand.step(token, n + number, seen)
        expected.append(token)
    assert got.token_ids == expected
    assert decoding.cache.length == n + 4
    for layer in range(N_LAYERS):
        new_keys = decoding.cache.entries(layer)[0][:, :, n:]
        torch.testing.assert_close(new_keys, by_hand.keys[layer][:, :, len(rows[layer]) :], rtol=1e-4, atol=1e-4)
    read = [sum(map(len, of_heads)) / len(of_heads) for seen in (first, later, later, later) for of_heads in seen]
    newer = N_LAYERS * (1 + 2 + 3)
    assert got.kv_bytes == pytest.approx(decoding.cache.bytes_per_token * (sum(read) + newer) / N_LAYERS / 4)


def test_fewer_tokens_than_sinks_and_window_make_no_difference() -> None:
    selector = TokenSelectivePropagation(kv_retention_rate=0.01, tsp_rate=0.01)
    for family in CONFIGS:
        for n in (1, 2, 7, selector.num_init + selector.window_size + 1):
            model, prompt = tiny_model(family), some_prompt(n, seed=n)
            assert generate(model, prompt, lossy(selector)).token_ids == greedy(model, prompt, 8)


@pytest.mark.parametrize("family", CONFIGS)
@hypothesis_settings(max_examples=15)
@given(
    prompt=st.lists(tokens, min_size=1, max_size=60),
    tsp_layer=st.none() | st.integers(0, 1),
    window_size=st.integers(1, 70),
)
def test_rates_of_one_equal_plain_greedy(
    family: str, prompt: list[int], tsp_layer: int | None, window_size: int
) -> None:
    everything = TokenSelectivePropagation(1.0, window_size, tsp_layer=tsp_layer, tsp_rate=1.0)
    model = tiny_model(family)
    assert generate(model, prompt, lossy(everything, 12)).token_ids == greedy(model, prompt, 12)


def test_without_layers_behind_it_is_the_selection_alone() -> None:
    model, prompt = deep_model("llama-gqa-tied"), some_prompt(60)
    alone = generate(model, prompt, lossy(FastKV(0.1, 2, 3)))
    last = TokenSelectivePropagation(0.1, 2, 3, tsp_layer=N_LAYERS - 1)
    assert generate(model, prompt, lossy(last)).token_ids == alone.token_ids
    assert generate(model, prompt, lossy(last)).kv_bytes == alone.kv_bytes
    assert alone.token_ids != greedy(model, prompt, 8)


@pytest.mark.parametrize("n_layers, middle", [(1, 0), (2, 0), (3, 0), (4, 1), (30, 14), (32, 15), (36, 17), (40, 19)])
def test_by_default_the_first_half_of_the_layers_reads_the_whole_prompt(n_layers: int, middle: int) -> None:
    assert TokenSelectivePropagation().last_full_layer(n_layers) == middle


def test_the_model_is_as_before_also_after_an_error() -> None:
    model, prompt = deep_model("qwen3-gqa-tied"), some_prompt(40)
    settings = lossy(TokenSelectivePropagation(0.1, 2, 3))

    def traces() -> list[Any]:
        hooks = [[module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs] for module in model.modules()]
        return [json.dumps(hooks), model.config._attn_implementation, greedy(model, prompt, 8)]

    untouched = traces()
    expected = generate(model, prompt, settings).token_ids
    assert expected != greedy(model, prompt, 8)
    assert traces() == untouched

    last: nn.Module = model.base_model.layers[-1]  # type: ignore[index, assignment]
    with last.register_forward_hook(lambda *_: 1 / 0), pytest.raises(ZeroDivisionError):
        generate(model, prompt, settings)
    assert traces() == untouched
    assert generate(model, prompt, DecodeSettings(8)).token_ids == greedy(model, prompt, 8)
    assert generate(model, prompt, settings).token_ids == expected


def test_only_lossy_decoding_takes_it() -> None:
    for window in (0, 5):
        with pytest.raises(ValueError, match="selector: TokenSelectivePropagation works in lossy decoding only"):
            DecodeSettings(8, selector=TokenSelectivePropagation(), level=5, window=window, num_guesses=window)


def test_a_layer_that_the_model_lacks_is_refused() -> None:
    settings = lossy(TokenSelectivePropagation(tsp_layer=2))
    with pytest.raises(UserError, match="tsp_layer: found 2, but the model has 2 layers: right are 0 to 1"):
        generate(tiny_model("llama-mha"), [1, 2, 3], settings)
    assert generate(deep_model("llama-mha"), [1, 2, 3], settings).token_ids


@pytest.mark.parametrize(
    "values", [{"tsp_layer": -1}, {"tsp_layer": 1.0}, {"tsp_rate": 0.0}, {"tsp_rate": 1.1}, {"tsp_rate": "0.2"}]
)
def test_impossible_settings_are_refused_by_name(values: dict[str, Any]) -> None:
    (field,) = values
    with pytest.raises(ValueError, match=field):
        TokenSelectivePropagation(**values)


def linear_flops_of_prefill(model: PreTrainedModel, n: int, settings: DecodeSettings) -> int:
    """Multiplications and additions that reading `n` tokens takes in linear layers, as PyTorch counts them."""
    decoding = Decoding(model, some_prompt(n + 1), settings)
    with torch.inference_mode(), fafo_attention_on(model), FlopCounterMode(display=False) as counter:
        decoding.prefill()
    of_operators = counter.get_flop_counts()["Global"]
    return sum(of_operators.get(operator, 0) for operator in (torch.ops.aten.mm, torch.ops.aten.addmm))


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("tsp_layer", [None, 0, N_LAYERS - 1])
def test_prefill_computes_what_the_theory_says(family: str, tsp_layer: int | None) -> None:
    model, n = deep_model(family), 50
    selector = TokenSelectivePropagation(0.1, 2, 3, tsp_layer=tsp_layer)
    rows = selector.rows_of_layers(n, N_LAYERS)
    plain, fastkv = (linear_flops_of_prefill(model, n, settings) for settings in (DecodeSettings(8), lossy(selector)))
    assert (fastkv < plain) == (tsp_layer != N_LAYERS - 1)
    for linear, of_layers in ((plain, [n] * N_LAYERS), (fastkv, rows)):
        pairs = sum(1 for of_layer in of_layers for row in range(of_layer) for _ in range(row + 1))
        all_heads = model.base_model.layers[0].self_attn.o_proj.in_features  # type: ignore[index, union-attr]
        assert bench_fastkv.prefill_flops(model.config, of_layers) == linear + pairs * 2 * 2 * all_heads


def test_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    deep_model("llama-gqa-tied").save_pretrained(tmp_path / "tiny")
    monkeypatch.setattr(
        sys, "argv",
        f"bench_fastkv.py --model {tmp_path}/tiny --lengths 500 1 40 --new-tokens 4 --repeats 2 --window-size 2 "
        f"--json {tmp_path}/figures.json".split(),
    )  # fmt: skip
    bench_fastkv.main()
    of_lengths = json.loads((tmp_path / "figures.json").read_text())["lengths"]
    assert [of["n_prompt_tokens"] for of in of_lengths] == [1, 40, MAX_LENGTH - 4]
    for of in of_lengths:
        assert all(len(of[figure][name]) == 2 for figure in bench_fastkv.MEASURED for name in ("plain", "fastkv"))
        if of["n_prompt_tokens"] > 1:
            assert max(of["kv_bytes"]["fastkv"]) < min(of["kv_bytes"]["plain"])
            assert of["prefill_flops"]["fastkv"] < of["prefill_flops"]["plain"]
    assert "times less" in capsys.readouterr().out
