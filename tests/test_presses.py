"""Presses of kvpress as selectors: against kvpress itself, against our own methods, and refused with the reason."""

import subprocess
import sys
from copy import deepcopy
from importlib import import_module
from importlib.metadata import requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from pipeline.common.config import load_experiment
from pipeline.errors import UserError
from pipeline.fafo.attention import fafo_attention_on
from pipeline.fafo.decode import Decoding, generate
from pipeline.fafo.generate import fafo_generate
from pipeline.fafo.selectors import TOVA, PyramidKV, Selector, SnapKV, StreamLLM, presses
from pipeline.fafo.selectors.named import selector_named
from pipeline.fafo.selectors.presses import REFUSED, SUPPORTED, press_selector
from pipeline.fafo.settings import DecodeSettings
from tests.runs import ROOT, Case
from tests.tiny import CONFIGS, VOCABULARY, greedy, tiny_model

ACCEPTED = next(r.specifier for r in map(Requirement, requires("kvpress") or []) if r.name == "transformers")
pytestmark = [
    pytest.mark.skipif(
        version("transformers") not in ACCEPTED,
        reason=f"kvpress {version('kvpress')} takes transformers {ACCEPTED}, and here is {version('transformers')}",
    ),
    pytest.mark.skipif(find_spec("pipes") is None, reason="kvpress takes fire 0.6, which needs a Python before 3.13"),
]

SMALL: list[tuple[str, dict[str, Any]]] = [
    ("CapPress", {"n_sink": 2, "n_future_positions": 16}),
    ("CompactorPress", {"sink_size_start": 2, "sink_size_end": 3, "chunk_size": 8, "sketch_dimension": 6}),
    ("CompactorPress", {"sink_size_start": 0, "sink_size_end": 0, "blending": 0.2}),
    ("CURPress", {"num_sinks": 2, "local_window_size": 4}),
    ("CURPress", {"use_random_leverage": True, "use_local_approximation": False, "leverage_type": "kv_avg"}),
    ("ExpectedAttentionPress", {"n_sink": 2, "n_future_positions": 200}),
    ("ExpectedAttentionPress", {"n_sink": 0, "use_covariance": False, "use_vnorm": False}),
    ("KeyDiffPress", {}),
    ("KnormPress", {}),
    ("LagKVPress", {"n_sink": 1, "lag_size": 6}),
    ("LagKVPress", {"n_sink": 1, "lag_size": 6, "cross_scoring": True}),
    ("LeverageScorePress", {"sketch_dimension": 5}),
    ("NonCausalAttnPress", {"chunk_size": 7}),
    ("PyramidKVPress", {"window_size": 3, "kernel_size": 3, "beta": 3}),
    ("RandomPress", {}),
    ("SnapKVPress", {"window_size": 4, "kernel_size": 3}),
    ("StreamingLLMPress", {"n_sink": 3}),
    ("TOVAPress", {}),
]
each_press = pytest.mark.parametrize(
    ("name", "fields"), SMALL, ids=[f"{name}-{'-'.join(map(str, fields.values()))}" for name, fields in SMALL]
)
prompts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=50)
Positions = list[list[set[int]]]  # of each layer, of each KV head


def some_prompt(n: int, seed: int = 0) -> list[int]:
    return torch.randint(VOCABULARY, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def kvpress() -> Any:
    press_selector("KnormPress")  # imports it as we do
    return import_module("kvpress")


def make(name: str, fields: dict[str, Any], ratio: float) -> Selector:
    return press_selector(name)(**{"compression_ratio": ratio} | fields)


def fafo(selector: Selector, n_new: int = 12) -> DecodeSettings:
    return DecodeSettings(n_new_tokens=n_new, level=3, window=4, num_guesses=3, selector=selector)


def positions(values: Tensor) -> list[set[int]]:
    """What the values, [1, kv_heads, n, any], carry: positions, none of them twice, per KV head."""
    heads = [{int(p) for p in head[:, 0]} for head in values[0]]
    assert all(len(head) == values.shape[2] for head in heads)
    return heads


@torch.inference_mode()
def read(model: PreTrainedModel, text: list[int], selector: Selector) -> Decoding:
    """A decoding that has read `text`, and is to see its choice next."""
    decoding = Decoding(model, [*text, 0], fafo(selector))
    with fafo_attention_on(model):
        decoding.prefill()
    return decoding


def kept_here(model: PreTrainedModel, text: list[int], selector: Selector) -> Positions:
    decoding = read(model, text, selector)
    kept = []
    for layer, view in enumerate(decoding.views):
        keys, _ = decoding.cache.entries(layer)
        values = torch.arange(len(text), dtype=torch.float)[None, None, :, None].expand_as(keys)
        parts = [part for part in view.select(keys[:, :, :1], keys, values) if isinstance(part, tuple)]
        seen_keys, seen = (torch.cat(tensors, dim=2) for tensors in zip(*parts, strict=True))
        assert torch.equal(seen, seen.sort(dim=2).values)
        assert torch.equal(seen_keys, keys.take_along_dim(seen[..., :1].long(), dim=2))
        kept.append(positions(seen))
    return kept


@torch.inference_mode()
def kept_by_kvpress(model: PreTrainedModel, text: list[int], press: Any, seed: int) -> Positions:
    model = deepcopy(model)  # it leaves modules behind
    ids = torch.tensor([text], device=model.device)
    whole, compressed = DynamicCache(), DynamicCache()
    model(ids, past_key_values=whole)
    with torch.random.fork_rng(), press(model):
        torch.manual_seed(seed)
        model(ids, past_key_values=compressed)
    kept = []
    for of_all, of_kept in zip(whole.layers, compressed.layers, strict=True):
        assert isinstance(of_all.keys, Tensor) and isinstance(of_kept.keys, Tensor)
        same = (of_kept.keys.unsqueeze(3) == of_all.keys.unsqueeze(2)).all(dim=-1)  # [1, kv_heads, kept, all]
        assert (same.sum(dim=-1) == 1).all()
        kept.append(positions(same.int().argmax(dim=-1, keepdim=True)))
    return kept


def n_always_kept(selector: Selector) -> int:
    return sum(getattr(selector, field) for field in SUPPORTED[type(selector).__name__])


def test_every_press_is_used_or_refused_with_a_reason() -> None:
    names = {name for name in kvpress().__all__ if name.endswith("Press")}
    assert names == SUPPORTED.keys() | REFUSED.keys()
    assert not SUPPORTED.keys() & REFUSED.keys()
    assert {name for name, _ in SMALL} == SUPPORTED.keys()
    assert all(issubclass(press_selector(name).press_class, kvpress().ScorerPress) for name in SUPPORTED)


@each_press
@pytest.mark.parametrize("model_name", CONFIGS)
def test_keeps_what_kvpress_keeps(name: str, fields: dict[str, Any], model_name: str) -> None:
    model, text = tiny_model(model_name), some_prompt(40)
    for ratio in (0.0, 0.3, 0.75):
        own = press_selector(name).press_class(compression_ratio=ratio, **fields)
        expected = kept_by_kvpress(model, text, own, seed=5)
        assert kept_here(model, text, make(name, fields | {"seed": 5}, ratio)) == expected


@each_press
@settings(max_examples=25)
@given(prompt=prompts, ratio=st.floats(0, 0.99))
def test_as_many_are_kept_as_are_not_dropped(
    name: str, fields: dict[str, Any], prompt: list[int], ratio: float
) -> None:
    selector = make(name, fields, ratio)
    kept = kept_here(tiny_model("qwen2-gqa"), prompt, selector)
    n = len(prompt)
    if n <= n_always_kept(selector):
        assert kept == [[set(range(n))] * 2] * 2
    elif name == "PyramidKVPress":
        assert all(1 <= len(head) <= n for layer in kept for head in layer)
        assert len(kept[0][0]) >= len(kept[1][0])
    else:
        assert {len(head) for layer in kept for head in layer} == {max(1, int(n * (1 - ratio)))}


@each_press
@settings(max_examples=6)
@given(prompt=prompts, ratio=st.floats(0, 0.99), model_name=st.sampled_from(sorted(CONFIGS)))
def test_output_is_that_of_plain_decoding(
    name: str, fields: dict[str, Any], prompt: list[int], ratio: float, model_name: str
) -> None:
    model = tiny_model(model_name)
    assert generate(model, prompt, fafo(make(name, fields, ratio))).token_ids == greedy(model, prompt, 12)


@each_press
def test_lossy_decoding_that_drops_nothing_is_plain_decoding(name: str, fields: dict[str, Any]) -> None:
    model, prompt = tiny_model("llama-gqa-tied"), some_prompt(30)
    lossy = DecodeSettings(n_new_tokens=12, lossy=True, selector=make(name, fields, 0.0))
    assert generate(model, prompt, lossy).token_ids == greedy(model, prompt, 12)


@each_press
def test_lossy_decoding_sees_what_is_kept_and_all_that_is_new(name: str, fields: dict[str, Any]) -> None:
    model, prompt, n_new = tiny_model("llama-gqa-tied"), some_prompt(41), 5
    selector = make(name, fields, 0.5)
    kept = kept_here(model, prompt[:-1], selector)
    mean = sum(len(head) for layer in kept for head in layer) / sum(map(len, kept))
    seen = generate(model, prompt, DecodeSettings(n_new_tokens=n_new, lossy=True, selector=selector)).seen_cache_tokens
    # The first step sees all 40 that were read; the others what is kept, the prompt's last token and later ones.
    assert seen == pytest.approx((40 + sum(mean + i for i in range(1, n_new))) / n_new)


def test_nothing_is_written_to_keys_and_values() -> None:
    model, text = tiny_model("llama-gqa-tied"), some_prompt(40)
    plain = read(model, text, StreamLLM())
    for name, fields in SMALL:
        decoding = read(model, text, make(name, fields, 0.5))
        for layer in range(2):
            for got, expected in zip(decoding.cache.entries(layer), plain.cache.entries(layer), strict=True):
                assert torch.equal(got, expected), name


@pytest.mark.parametrize("n", [40, 57])
@pytest.mark.parametrize("model_name", ["llama-gqa-tied", "llama-mha", "qwen3-gqa-tied"])
def test_our_own_methods_keep_the_same(model_name: str, n: int) -> None:
    model, text = tiny_model(model_name), some_prompt(n, seed=n)
    for ratio in (0.25, 0.5, 0.8):
        n_kept = int(n * (1 - ratio))
        window = {"window_size": 4, "kernel_size": 5}
        for own, name, fields in [
            (StreamLLM(num_init=3, num_local=n_kept - 3), "StreamingLLMPress", {"n_sink": 3}),
            (SnapKV(budget=n_kept, **window), "SnapKVPress", window),
            (PyramidKV(budget=1 - ratio, **window, beta=3), "PyramidKVPress", window | {"beta": 3}),
        ]:
            assert kept_here(model, text, own) == kept_here(model, text, make(name, fields, ratio)), name
        # TOVA goes on to evict: what it kept of the prompt is the first candidates of its next choice.
        of_tova = [view.memory.positions[0] for view in read(model, text, TOVA(budget=n_kept)).views]
        of_press = kept_here(model, text, make("TOVAPress", {}, ratio))
        assert [{*heads[0].tolist()} for heads in of_tova] == [layer[0] for layer in of_press]
        assert all(head == layer[0] for layer in of_press for head in layer)


def test_draws_depend_on_the_seed_and_leave_the_callers_alone() -> None:
    model, text = tiny_model("llama-mha"), some_prompt(40)
    for name, fields in SMALL:
        if name in ("RandomPress", "LeverageScorePress") or "use_random_leverage" in fields:
            torch.manual_seed(1)
            first, again, other = (kept_here(model, text, make(name, fields | {"seed": s}, 0.5)) for s in (3, 3, 4))
            drawn = torch.rand(4)
            assert first == again != other
            torch.manual_seed(1)
            assert torch.equal(torch.rand(4), drawn)


def test_a_model_is_as_before_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompt = tiny_model("llama-mha"), some_prompt(30)
    before = {name: type(module) for name, module in model.named_modules()}
    press_class = press_selector("KnormPress").press_class
    own_rotary = torch.nn.Identity()
    attention = model.base_model.layers[1].self_attn  # type: ignore[union-attr,index]

    def score(*args: Any) -> Tensor:
        assert hasattr(model.base_model.layers[0].self_attn, "rotary_emb")  # type: ignore[union-attr,index]
        raise RuntimeError("of a press")

    generate(model, prompt, fafo(make("KnormPress", {}, 0.5)))
    monkeypatch.setattr(press_class, "score", score)
    with pytest.raises(RuntimeError, match="of a press"):
        generate(model, prompt, fafo(make("KnormPress", {}, 0.5)))
    assert {name: type(module) for name, module in model.named_modules()} == before
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert model.config._attn_implementation != "fafo"
    attention.rotary_emb = own_rotary
    try:
        with pytest.raises(RuntimeError, match="of a press"):
            generate(model, prompt, fafo(make("KnormPress", {}, 0.5)))
        assert attention.rotary_emb is own_rotary
    finally:
        del attention.rotary_emb


def test_rotary_embeddings_that_grow_are_asked_on_a_copy() -> None:
    model, prompt = tiny_model("llama-dynamic-rope"), some_prompt(30)
    before = deepcopy(model.base_model.rotary_emb)
    generate(model, prompt, fafo(make("ExpectedAttentionPress", {"n_future_positions": 1000}, 0.5)))
    after = model.base_model.rotary_emb
    assert torch.equal(after.inv_freq, before.inv_freq)  # type: ignore[union-attr,arg-type]
    assert after.max_seq_len_cached == before.max_seq_len_cached  # type: ignore[union-attr]


@torch.inference_mode()
def test_entries_of_an_earlier_turn_are_not_reused() -> None:
    model, prompt = tiny_model("llama-mha"), some_prompt(30)
    settings = fafo(make("KnormPress", {}, 0.5))
    earlier = Decoding(model, prompt, settings)
    longer = prompt + earlier.run().token_ids + some_prompt(9, seed=2)
    later = Decoding(model, longer, settings, earlier=earlier).run()
    assert later.n_reused_tokens == 0
    assert later.token_ids == greedy(model, longer, 12)


def by_fafo(model: PreTrainedModel, ids: Tensor, kv_method: str, **arguments: Any) -> Any:
    return model.generate(  # type: ignore[operator]
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=4,
        do_sample=False,
        custom_generate=fafo_generate,
        kv_method=kv_method,
        **arguments,
    )


@pytest.mark.parametrize("n_cached", [1, 20, 29])
def test_entries_handed_over_are_refused(n_cached: int) -> None:
    model, ids = tiny_model("llama-mha"), torch.tensor([some_prompt(30)])
    cache = DynamicCache()
    with torch.no_grad():
        model(ids[:, :n_cached], past_key_values=cache)
    with pytest.raises(UserError, match=r"^past_key_values: the selector must see the whole prompt"):
        by_fafo(model, ids, "kvpress:KnormPress", past_key_values=cache)
    by_fafo(model, ids, "snapkv", past_key_values=cache)


def test_fafo_generate_takes_presses() -> None:
    model, prompt = tiny_model("mistral-gqa"), some_prompt(30)
    ids, name = torch.tensor([prompt]), "kvpress:SnapKVPress"
    params = {"compression_ratio": 0.5, "window_size": 4}
    output = by_fafo(model, ids, name, kv_params=params, planner="fixed", return_dict_in_generate=True)
    assert output.sequences[0, 30:].tolist() == greedy(model, prompt, 4)
    [statistics] = output.statistics
    # 29 entries were read and 14 of them kept: the window lacks 15 of what the other rows see.
    assert statistics.cache_tokens_beside_window - statistics.window_cache_tokens == 15
    with pytest.raises(UserError, match=r"^kv_params.compression_ratio: .* less than 1, found 1"):
        by_fafo(model, ids, name, kv_params={"compression_ratio": 1})
    with pytest.raises(UserError, match=r"^kv_params.blending: .* finite number, found inf"):
        by_fafo(model, ids, "kvpress:CompactorPress", kv_params={"blending": float("inf")})
    with pytest.raises(UserError, match=r"^kv_params.windw: "):
        by_fafo(model, ids, name, kv_params={"windw": 1})


def press_case(folder: Path, name: str, **keys: Any) -> Case:
    case = Case(folder, model="anything")
    del case.pipeline["num_init"], case.pipeline["num_local"]
    case.pipeline.update(kv_method=f"kvpress:{name}", **keys)
    case.write()
    return case


def test_configs_name_presses(tmp_path: Path) -> None:
    case = press_case(tmp_path, "LeverageScorePress", compression_ratio=0.5, seed=7)
    experiment = load_experiment(case.pipeline_file, case.eval_file)
    assert experiment.selector == make("LeverageScorePress", {"seed": 7}, 0.5)
    params = experiment.pipeline_params()
    recorded = {"kv_method": "kvpress:LeverageScorePress", "compression_ratio": 0.5, "sketch_dimension": 48, "seed": 7}
    assert params == params | recorded
    case = press_case(tmp_path, "RandomPress")
    case.pipeline.pop("seed", None)
    case.write()
    experiment = load_experiment(case.pipeline_file, case.eval_file)
    assert experiment.pipeline_params()["seed"] == experiment.pipeline.seed == experiment.decode_settings(()).seed
    assert experiment.selector == press_selector("RandomPress")(seed=experiment.pipeline.seed)


@pytest.mark.parametrize(
    ("name", "keys", "said"),
    [
        ("SnapKVPress", {"windw_size": 3}, 'windw_size: unknown key; did you mean "window_size"'),
        ("KnormPress", {"window_size": 3}, "window_size: unknown key"),
        ("CompactorPress", {"_leverage_press": None}, "_leverage_press: unknown key"),
        ("SnapKVPress", {"press_class": None}, "press_class: unknown key"),
        ("CompactorPress", {"compression_ratio": 1.5}, "compression_ratio: found 1.5; should be less than 1"),
        ("KnormPress", {"compression_ratio": 1.0}, "compression_ratio: found 1.0; should be less than 1"),
        ("KnormPress", {"compression_ratio": -0.1}, "compression_ratio: found -0.1; should be greater"),
        ("KnormPress", {"compression_ratio": "0.5"}, 'compression_ratio: found "0.5"; should be a valid number'),
        ("SnapKVPress", {"window_size": 0}, "window_size: found 0; should be greater than or equal to 1"),
        ("SnapKVPress", {"window_size": 2.5}, "window_size: found 2.5; should be a valid integer"),
        ("SnapKVPress", {"kernel_size": 4}, "kernel_size: found 4; should be odd"),
        ("PyramidKVPress", {"beta": 0}, "beta: found 0; should be greater"),
        ("LagKVPress", {"lag_size": 0}, "lag_size: found 0; should be greater"),
        ("StreamingLLMPress", {"n_sink": -1}, "n_sink: found -1; should be greater than or equal to 0"),
        ("CURPress", {"leverage_type": "keys"}, 'leverage_type: found "keys"; should be'),
        ("CompactorPress", {"blending": "all"}, 'blending: found "all"; should be a valid number'),
        ("RandomPress", {"seed": -1}, "seed: found -1; should be greater than or equal to 0"),
    ],
)
def test_wrong_keys_are_named(name: str, keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    case = press_case(tmp_path, name, **keys)
    with pytest.raises(UserError) as caught:
        load_experiment(case.pipeline_file, case.eval_file)
    assert f"pipeline_params.{said}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("QFilterPress", 'found "kvpress:QFilterPress", but it needs weights or statistics made for the model'),
        ("KVzipPress", "it runs the model over the prompt more than once"),
        ("ObservedAttentionPress", "it needs the attention weights of the whole prompt"),
        ("ThinKPress", "it drops channels of the keys, not tokens"),
        ("AdaKVPress", "it wraps another press"),
        ("ScorerPress", "it is no method"),
        ("SnapKV", 'found "kvpress:SnapKV", but it is no press; did you mean "SnapKVPress"'),
        ("KVPressTextGenerationPipeline", "it is no press"),
        ("", "it is no press; known: CURPress, CapPress"),
        ("presses.snapkv_press:SnapKVPress", "it is no press"),
    ],
)
def test_what_is_no_press_to_use_is_refused_with_the_reason(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^found "):
        selector_named(f"kvpress:{name}")
    case = press_case(tmp_path, name)
    with pytest.raises(UserError) as caught:
        load_experiment(case.pipeline_file, case.eval_file)
    assert "pipeline_params.kv_method: found " in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"^kv_method: found "):
        by_fafo(tiny_model("llama-mha"), torch.tensor([[1, 2, 3]]), f"kvpress:{name}")


def test_fafo_generate_takes_classes_of_modules() -> None:
    model, prompt = tiny_model("llama-mha"), torch.tensor([[1, 2, 3]])
    assert by_fafo(model, prompt, "pipeline.fafo.selectors.stream_llm:StreamLLM").shape == (1, 7)
    with pytest.raises(UserError, match=r'^kv_method: found "nowhere:Class", which can\'t be imported'):
        by_fafo(model, prompt, "nowhere:Class")


def test_without_kvpress_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    kvpress()  # undone below: a second copy of it would be imported otherwise
    press_selector.cache_clear()
    monkeypatch.setitem(sys.modules, "kvpress", None)
    with pytest.raises(UserError, match=r"^found .*, but it needs kvpress: run pip install kvpress==0.5.5$"):
        selector_named("kvpress:KnormPress")
    with pytest.raises(UserError, match=REFUSED["ThinKPress"]):
        selector_named("kvpress:ThinKPress")


def test_what_kvpress_fails_with_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError("cannot import name 'X' from 'transformers'\nmore")

    press_selector.cache_clear()
    monkeypatch.setattr(presses, "import_module", fail)
    with pytest.raises(UserError, match=r"can't be imported: ImportError: cannot import name 'X' from 'transformers'$"):
        selector_named("kvpress:KnormPress")


def test_an_older_kvpress_lacks_presses(monkeypatch: pytest.MonkeyPatch) -> None:
    press_selector.cache_clear()
    monkeypatch.delattr(kvpress(), "CapPress")
    with pytest.raises(UserError, match=r"which is here, has no such press: run pip install kvpress=="):
        selector_named("kvpress:CapPress")


IN_A_NEW_PROCESS = """
import sys
from pipeline.fafo.decode import generate
from pipeline.fafo.selectors.presses import press_selector
from pipeline.fafo.settings import DecodeSettings
from tests.tiny import greedy, tiny_model
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

def overridden(*args, **kwargs):
    return ALL_ATTENTION_FUNCTIONS["sdpa"](*args, **kwargs)

def check():
    model, prompt = tiny_model("llama-gqa-tied"), list(range(20))
    settings = DecodeSettings(n_new_tokens=8, level=3, window=4, num_guesses=3)
    assert generate(model, prompt, settings).token_ids == greedy(model, prompt, 8)

ALL_ATTENTION_FUNCTIONS["flash_attention_2"] = overridden
before = dict(ALL_ATTENTION_FUNCTIONS)
check()
assert "kvpress" not in sys.modules  # until asked for

press_selector("KnormPress")
import kvpress
assert ALL_ATTENTION_FUNCTIONS.keys() == before.keys()
assert all(ALL_ATTENTION_FUNCTIONS[name] is before[name] for name in before)
check()
AttentionInterface.register("flex_attention", overridden)
assert ALL_ATTENTION_FUNCTIONS["flex_attention"] is overridden  # nothing is in front of what is registered

kvpress.attention_patch.patch_attention_functions()  # as an import of kvpress by others does
check()
press_selector("TOVAPress")
assert ALL_ATTENTION_FUNCTIONS["sdpa"] is not before["sdpa"]  # which is theirs
"""


def test_models_run_as_without_kvpress_once_it_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_NEW_PROCESS], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
