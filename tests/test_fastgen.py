"""FastGen from its definition in plain loops, and parts of the cache in which each KV head has entries of its own."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unicodedata import category

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import AutoTokenizer

from pipeline.fafo.attention import fafo_attention_on
from pipeline.fafo.decode import Decoding, generate
from pipeline.fafo.partial import attend_part, merge
from pipeline.fafo.selectors import SELECTORS, FastGen, LayerView, fastgen
from pipeline.fafo.selectors.base import Part, Seen
from pipeline.fafo.selectors.fastgen import FREQUENT, FULL, LOCAL, POLICIES, PUNCTUATION, SPECIAL, Profile
from pipeline.fafo.selectors.scoring import weights_in_blocks
from pipeline.fafo.settings import DecodeSettings
from tests.runs import save_tiny_model
from tests.selecting import HEADS, KV_HEADS, SCALING, draw, positions_as_values, visible_positions
from tests.tiny import CONFIGS, VOCABULARY, greedy, tiny_model

GROUP = HEADS // KV_HEADS
IDS = 6  # few, so that special tokens and punctuation are met
ids = st.lists(st.integers(0, IDS - 1), max_size=2).map(tuple)
ratios = st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0])
targets = st.floats(0.05, 1.0)


@dataclass(frozen=True)
class Case:
    """A layer with random keys, the queries of the last `n_rows` tokens of its prompt, and a text that goes on."""

    n_prompt: int
    n_rows: int
    n_more: int
    seed: int

    @property
    def text(self) -> list[int]:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(IDS, (self.n_prompt + self.n_more,), generator=generator).tolist()

    @property
    def keys(self) -> Tensor:
        return draw(self.seed, KV_HEADS, self.n_prompt + self.n_more)

    @property
    def query(self) -> Tensor:
        return 4 * draw(self.seed + 1000, HEADS, self.n_rows)

    def observed(self, selector: FastGen) -> LayerView:
        view = LayerView(selector, text=self.text)
        keys, values = self.keys[:, :, : self.n_prompt], positions_as_values(self.n_prompt)
        view.observe(Seen(self.query, keys, values, SCALING, nn.Identity()))
        view.prompt_ends(self.n_prompt, see_all=False)
        return view


cases = st.integers(1, 20).flatmap(
    lambda n: st.builds(Case, st.just(n), n_rows=st.integers(1, n), n_more=st.integers(0, 12), seed=st.integers(0, 50))
)


class ByDefinition:
    """What FastGen keeps, token by token."""

    def __init__(self, selector: FastGen, case: Case) -> None:
        self.selector, self.case = selector, case
        self.weights = [self.attention(head) for head in range(HEADS)]
        sums = [
            [sum(float(row[j]) for h in self.group(kv_head) for row in self.weights[h]) for j in range(case.n_prompt)]
            for kv_head in range(KV_HEADS)
        ]
        n_frequent = round(selector.frequent_ratio * case.n_prompt)
        self.frequent = [sorted(range(case.n_prompt), key=lambda j: -of[j])[:n_frequent] for of in sums]

    def attention(self, head: int) -> list[Tensor]:
        case, rows = self.case, []
        for row in range(case.n_rows):
            position = case.n_prompt - case.n_rows + row
            keys = case.keys[0, head // GROUP, : position + 1].double()
            weights = ((keys @ case.query[0, head, row].double()) * SCALING).softmax(dim=0)
            rows.append(torch.cat([weights, weights.new_zeros(case.n_prompt - position - 1)]))
        return rows

    def group(self, kv_head: int) -> list[int]:
        return [head for head in range(HEADS) if head // GROUP == kv_head]

    def keeps(self, policy: int, kv_head: int, token: int, oldest_local: int, oldest_frequent: int) -> bool:
        """Whether a policy keeps a token; later ones than the last two are local, and frequent."""
        kind = self.case.text[token]
        reasons = [
            token == 0 or kind in self.selector.special_ids,
            kind in self.selector.punctuation_ids,
            token in self.frequent[kv_head] or token >= oldest_frequent,
            token >= oldest_local,
            True,
        ]
        return any(reasons[: policy + 1])

    def recovered(self, policy: int, kv_head: int) -> float:
        case = self.case
        window = round(self.selector.local_ratio * case.n_prompt)
        shares = []
        for head in self.group(kv_head):
            for row, weights in enumerate(self.weights[head]):
                position = case.n_prompt - case.n_rows + row
                kept = [
                    float(weights[token])
                    for token in range(position + 1)
                    if self.keeps(policy, kv_head, token, position + 1 - window, case.n_prompt)
                ]
                shares.append(sum(kept))
        return sum(shares) / len(shares)

    def seen(self, policy: int, kv_head: int, length: int) -> list[int]:
        """What a head sees when `length` tokens are committed and the choice is made."""
        n_frequent, n_prompt = self.selector.frequent_ratio, self.case.n_prompt
        oldest_frequent = length - (round(n_frequent * length) - round(n_frequent * n_prompt))
        oldest_local = length - round(self.selector.local_ratio * length)
        return [t for t in range(length) if self.keeps(policy, kv_head, t, oldest_local, oldest_frequent)]

    def policy(self, kv_head: int) -> int:
        recovered = [self.recovered(policy, kv_head) for policy in range(FULL)] + [1.0]
        assume(all(abs(share - self.selector.target) > 1e-6 or share == 1.0 for share in recovered))
        found = next(policy for policy, share in enumerate(recovered) if share >= self.selector.target)
        n_kept = len(self.seen(found, kv_head, self.case.n_prompt))
        return FULL if n_kept == self.case.n_prompt else found


def profile_of(view: LayerView) -> Profile:
    assert isinstance(view.memory, Profile)
    return view.memory


@hypothesis_settings(max_examples=50)
@given(
    case=cases,
    selector=st.builds(
        FastGen, target=targets, local_ratio=ratios, frequent_ratio=ratios, special_ids=ids, punctuation_ids=ids
    ),
    interval=st.integers(1, 4),
)
def test_heads_see_what_the_definition_says(case: Case, selector: FastGen, interval: int) -> None:
    selector = replace(selector, update_interval=interval)
    expected, view = ByDefinition(selector, case), case.observed(selector)
    profile, policies = profile_of(view), [expected.policy(kv_head) for kv_head in range(KV_HEADS)]
    assert profile.policies.tolist() == policies
    for kv_head in range(KV_HEADS):
        shares = [expected.recovered(policy, kv_head) for policy in range(len(POLICIES))]
        assert profile.recovered[kv_head].tolist() == pytest.approx(shares, abs=1e-5)
        n_kept = [len(expected.seen(policy, kv_head, case.n_prompt)) for policy in range(len(POLICIES))]
        assert profile.n_kept[kv_head].tolist() == n_kept

    for step, length in enumerate(range(case.n_prompt, case.n_prompt + case.n_more + 1)):
        chosen_at = length - step % interval
        assert visible_positions(view, draw(length, HEADS, 1), case.keys[:, :, :length]) == [
            [*expected.seen(policy, kv_head, chosen_at), *range(chosen_at, length)]
            for kv_head, policy in enumerate(policies)
        ]


def test_all_policies_are_given() -> None:
    """The test above would be weak if they weren't, and if heads of one layer always agreed."""
    found, differ = set(), False
    for seed in range(20):
        for target in (0.2, 0.5, 0.8, 0.95, 0.999):
            view = Case(20, 20, 0, seed).observed(FastGen(target, special_ids=(1,), punctuation_ids=(2, 3)))
            policies = profile_of(view).policies.tolist()
            found |= set(policies)
            differ |= policies[0] != policies[1]
    assert found == {SPECIAL, PUNCTUATION, FREQUENT, LOCAL, FULL}
    assert differ


@given(case=cases, local_ratio=ratios, frequent_ratio=ratios, special=ids, punctuation=ids)
def test_a_target_of_one_keeps_all(
    case: Case, local_ratio: float, frequent_ratio: float, special: tuple[int, ...], punctuation: tuple[int, ...]
) -> None:
    view = case.observed(FastGen(1.0, local_ratio, frequent_ratio, 2, special, punctuation))
    assert profile_of(view).policies.tolist() == [FULL] * KV_HEADS
    for length in range(case.n_prompt, case.n_prompt + case.n_more + 1):
        seen = visible_positions(view, draw(length, HEADS, 1), case.keys[:, :, :length])
        assert seen == [list(range(length))] * KV_HEADS


@given(case=cases, special=ids)
def test_a_tiny_target_keeps_special_tokens_only(case: Case, special: tuple[int, ...]) -> None:
    view = case.observed(FastGen(1e-9, special_ids=special, punctuation_ids=(2, 3)))
    seen = visible_positions(view, draw(0, HEADS, 1), case.keys[:, :, : case.n_prompt])
    assert seen == [[i for i in range(case.n_prompt) if i == 0 or case.text[i] in special]] * KV_HEADS


@given(case=cases, drawn=st.lists(targets, min_size=2, max_size=8), special=ids, punctuation=ids)
def test_a_higher_target_never_gives_a_smaller_policy(
    case: Case, drawn: list[float], special: tuple[int, ...], punctuation: tuple[int, ...]
) -> None:
    profiles = [
        profile_of(case.observed(FastGen(target, special_ids=special, punctuation_ids=punctuation)))
        for target in sorted(drawn)
    ]
    for kv_head in range(KV_HEADS):
        policies = [int(profile.policies[kv_head]) for profile in profiles]
        assert policies == sorted(policies)
        for target, profile, policy in zip(sorted(drawn), profiles, policies, strict=True):
            assert profile.recovered[kv_head, policy] >= target
        assert profiles[0].n_kept[kv_head].tolist() == sorted(profiles[0].n_kept[kv_head].tolist())


@given(
    case=cases, target=targets, local_ratio=st.floats(0, 1), frequent_ratio=st.floats(0, 1), interval=st.integers(1, 4)
)
def test_what_is_evicted_never_returns(
    case: Case, target: float, local_ratio: float, frequent_ratio: float, interval: int
) -> None:
    view, before = case.observed(FastGen(target, local_ratio, frequent_ratio, interval, (1,), (2,))), None
    for length in range(case.n_prompt, case.n_prompt + case.n_more + 1):
        seen = visible_positions(view, draw(length, HEADS, 1), case.keys[:, :, :length])
        for kv_head in range(KV_HEADS):
            assert seen[kv_head][0] == 0
            if before is not None:
                assert set(seen[kv_head]) <= {*before[kv_head], length - 1}
        before = seen


@given(case=cases, n_scores=st.integers(1, 400))
def test_queries_are_profiled_some_at_a_time(case: Case, n_scores: int) -> None:
    keys = case.keys[:, :, : case.n_prompt]
    seen = Seen(case.query, keys, keys, SCALING, nn.Identity())
    at_once = fastgen.attention_sums(seen, window=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fastgen, "weights_in_blocks", partial(weights_in_blocks, n_at_once=n_scores))
        in_blocks = fastgen.attention_sums(seen, window=3)
    for sums, expected in zip(in_blocks, at_once, strict=True):
        torch.testing.assert_close(sums, expected, rtol=0, atol=1e-5)
    assert in_blocks[0].sum(dim=1).tolist() == pytest.approx([case.n_rows] * KV_HEADS, abs=1e-5)


def test_without_a_profile_all_is_seen() -> None:
    view, keys = LayerView(FastGen(0.1), text=[1] * 9), draw(0, KV_HEADS, 9)
    for length in (1, 2, 9):
        assert visible_positions(view, draw(0, HEADS, 1), keys[:, :, :length]) == [list(range(length))] * KV_HEADS


drawn_tokens = st.lists(st.integers(0, VOCABULARY - 1), max_size=4).map(tuple)
selectors = st.builds(
    FastGen,
    target=targets,
    local_ratio=ratios,
    frequent_ratio=ratios,
    update_interval=st.integers(1, 5),
    special_ids=drawn_tokens,
    punctuation_ids=drawn_tokens,
)


@pytest.mark.parametrize("family", CONFIGS)
@hypothesis_settings(max_examples=12)
@given(
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40),
    selector=selectors,
    level=st.integers(2, 5),
    window=st.integers(0, 6),
)
@example(prompt=[3], selector=FastGen(0.2), level=4, window=5)
@example(prompt=[5, 3], selector=FastGen(0.2), level=4, window=5)
@example(prompt=[5, 3, 5], selector=FastGen(0.2), level=4, window=5)
def test_output_is_that_of_plain_decoding(
    family: str, prompt: list[int], selector: FastGen, level: int, window: int
) -> None:
    settings = DecodeSettings(24, level=level, window=window, num_guesses=4, selector=selector)
    assert generate(tiny_model(family), prompt, settings).token_ids == greedy(tiny_model(family), prompt, 24)


@hypothesis_settings(max_examples=20)
@given(
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40),
    selector=selectors.map(lambda selector: replace(selector, target=1.0)),
)
@example(prompt=[3], selector=FastGen(1.0))
@example(prompt=[5, 3], selector=FastGen(1.0))
def test_lossy_decoding_with_a_target_of_one_is_plain_decoding(prompt: list[int], selector: FastGen) -> None:
    model = tiny_model("llama-gqa-tied")
    got = generate(model, prompt, DecodeSettings(24, lossy=True, selector=selector))
    assert got.token_ids == greedy(model, prompt, 24)


def test_lossy_decoding_reads_less_for_a_lower_target() -> None:
    model, prompt = tiny_model("llama-gqa-tied"), [7, 1, 3, 9, 2, 5] * 6
    read = [
        generate(model, prompt, DecodeSettings(24, lossy=True, selector=FastGen(target))).kv_bytes
        for target in (0.1, 0.9, 1.0)
    ]
    assert read[0] < read[1] < read[2]


@pytest.mark.parametrize("prompt", [[3], [5, 3], [5, 3, 5]], ids=len)
def test_prompts_of_a_few_tokens_can_be_decoded_lossily(prompt: list[int]) -> None:
    settings = DecodeSettings(24, lossy=True, selector=FastGen(0.1, update_interval=2))
    assert len(generate(tiny_model("llama-gqa-tied"), prompt, settings).token_ids) == 24


@torch.inference_mode()
def test_a_prompt_that_goes_on_is_profiled_by_its_new_tokens() -> None:
    model, settings = tiny_model("llama-gqa-tied"), DecodeSettings(12, level=3, window=4, num_guesses=3)
    settings = replace(settings, selector=FastGen(0.6, special_ids=(1,), punctuation_ids=(2,)))
    first = Decoding(model, [7, 1, 3, 9, 2, 5] * 3, settings)
    first.run()
    prompt = [*first.text, 4, 8, 1]
    second = Decoding(model, prompt, settings, earlier=first)
    assert second.run().token_ids == greedy(model, prompt, 12)
    assert second.n_reused > 0
    whole = Decoding(model, prompt, settings)
    with fafo_attention_on(model):
        whole.prefill()
    for continued, alone in zip(second.views, whole.views, strict=True):
        assert profile_of(continued).n_prompt == profile_of(alone).n_prompt == len(prompt) - 1
        assert not torch.allclose(profile_of(continued).recovered, profile_of(alone).recovered)

    covered = Decoding(model, first.text[: first.cache.length], settings, earlier=first)
    assert covered.run().token_ids == greedy(model, first.text[: first.cache.length], 12)
    assert covered.n_reused == first.cache.length - 1
    assert all(view.memory is None for view in covered.views)


def test_bind_asks_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(save_tiny_model(tmp_path))
    tokenizer.add_special_tokens({"eos_token": "<end>", "additional_special_tokens": ["<user>", "!!"]})
    tokenizer.add_tokens(["<turn>"], special_tokens=True)  # as chat templates' markers often are
    tokenizer.add_tokens(["?!", " .", ". .", "a.", "=", "…"])
    bound = FastGen(0.7).bind(tokenizer)
    assert bound == replace(FastGen(0.7), special_ids=bound.special_ids, punctuation_ids=bound.punctuation_ids)
    special = {tokenizer.convert_tokens_to_ids(token) for token in ("<end>", "<user>", "!!", "<turn>")}
    assert set(bound.special_ids) == special
    single = {tokenizer.convert_tokens_to_ids(c) for c in map(chr, range(33, 127)) if category(c)[0] == "P"}
    added = {tokenizer.convert_tokens_to_ids(token) for token in ("?!", " .", "…", "!!")}
    assert set(bound.punctuation_ids) == single | added
    assert bound.bind(tokenizer) == bound

    given = FastGen(special_ids=(5,)).bind(tokenizer)
    assert given.special_ids == (5,)
    assert given.punctuation_ids == bound.punctuation_ids
    assert FastGen(punctuation_ids=(5,)).bind(tokenizer).punctuation_ids == (5,)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"target": 0.0}, "target"),
        ({"target": 1.01}, "target"),
        ({"target": float("nan")}, "target"),
        ({"target": "0.9"}, "target"),
        ({"local_ratio": -0.1}, "local_ratio"),
        ({"frequent_ratio": 1.5}, "frequent_ratio"),
        ({"update_interval": 0}, "update_interval"),
        ({"special_ids": [-1]}, "special_ids"),
        ({"punctuation_ids": ["."]}, "punctuation_ids"),
        ({"budget": 4}, "budget"),
    ],
)
def test_impossible_settings_are_refused_by_name(values: dict[str, object], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        SELECTORS["fastgen"](**values)


def test_ids_may_be_a_list_as_in_a_config() -> None:
    from_config: dict[str, Any] = {"special_ids": [1, 2], "punctuation_ids": []}
    assert SELECTORS["fastgen"](**from_config) == FastGen(special_ids=(1, 2))


@given(
    owned=st.lists(st.lists(st.booleans(), min_size=KV_HEADS, max_size=KV_HEADS), max_size=12),
    n_shared=st.integers(1, 3),
    n_rows=st.integers(1, 3),
    shared_first=st.booleans(),
    seed=st.integers(0, 50),
)
@example(owned=[[False, True]] * 5, n_shared=1, n_rows=2, shared_first=False, seed=0)
@example(owned=[[False, True]] * 5, n_shared=1, n_rows=2, shared_first=True, seed=0)
def test_ragged_parts_are_attended_like_a_masked_dense_softmax(
    owned: list[list[bool]], n_shared: int, n_rows: int, shared_first: bool, seed: int
) -> None:
    """Each KV head has some entries of its own, or none, and all have some in common."""
    n = len(owned)
    query, keys, values = (
        draw(seed + i, heads, rows)
        for i, (heads, rows) in enumerate([(HEADS, n_rows), (KV_HEADS, n + n_shared), (KV_HEADS, n + n_shared)])
    )
    mask = torch.tensor([*owned, *[[True] * KV_HEADS] * n_shared]).T  # [kv_heads, entries]
    own = [mask[head, :n].nonzero().flatten() for head in range(KV_HEADS)]
    ragged: Part = [(keys[:, i : i + 1, at], values[:, i : i + 1, at]) for i, at in enumerate(own)]
    partials = [
        attend_part(query, ragged, SCALING),
        attend_part(query, (keys[:, :, n:], values[:, :, n:]), SCALING),
    ]
    got = merge(partials[::-1] if shared_first else partials)

    for head in range(HEADS):
        seen = mask[head // GROUP]
        for row in range(n_rows):
            scores = keys[0, head // GROUP, seen] @ query[0, head, row] * SCALING
            expected = scores.softmax(dim=0) @ values[0, head // GROUP, seen]
            torch.testing.assert_close(got[0, head, row], expected)
            own_scores = scores[: len(scores) - n_shared]
            torch.testing.assert_close(partials[0][1][0, head, row], own_scores.logsumexp(dim=0))
