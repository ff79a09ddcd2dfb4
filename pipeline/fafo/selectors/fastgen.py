"""FastGen: for each head the cheapest policy that would have kept enough of its attention to the prompt."""

from collections.abc import Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Self
from unicodedata import category
from weakref import WeakKeyDictionary

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from pipeline.fafo.selectors.base import Choice, LayerView, Seen, Selector
from pipeline.fafo.selectors.scoring import top_positions, weights_in_blocks

POLICIES = (
    "special",
    "special + punctuation",
    "special + punctuation + frequent",
    "special + punctuation + frequent + local",
    "full",
)
SPECIAL, PUNCTUATION, FREQUENT, LOCAL, FULL = range(len(POLICIES))
_PUNCTUATION: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[int, ...]] = WeakKeyDictionary()

Ratio = Annotated[float, Field(ge=0, le=1)]
TokenIds = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)]  # a list, as JSON has it, will do


@plain_dataclass
class Profile:
    """How the KV heads of one layer attend to the prompt, and what each sees for it.

    recovered: the share of its attention that falls on what a policy keeps, float64 [kv_heads, policies].
    n_kept: tokens of the prompt that a policy keeps, [kv_heads, policies].
    n_prompt: tokens that were profiled.
    policies: of each KV head, an index of `POLICIES`, [kv_heads].
    ranks: the first policy that keeps a token, be it among the latest or not, uint8 [kv_heads, n]; grows with the text.
    """

    recovered: Tensor
    n_kept: Tensor
    n_prompt: int
    policies: Tensor
    ranks: Tensor


@dataclass(frozen=True, config={"extra": "forbid", "strict": True})
class FastGen(Selector):
    """Per KV head, the first of `POLICIES` that recovers the share `target` of the prompt's attention (the paper's T).

    Each policy keeps what those before it keep, and more:

    - special tokens, and the first token of the text, whatever it is, so that no head sees nothing;
    - punctuation;
    - the round(`frequent_ratio` * length) tokens with the largest sums of attention weights over the prompt's queries;
    - the latest round(`local_ratio` * length) tokens;
    - all tokens.

    A policy recovers of a query the sum of the attention weights softmax(q.k * scaling) on keys that it keeps, which is
    1 minus half the L1 distance between the weights and those over kept keys alone. That is averaged over the prompt's
    queries and the query heads of the KV head. The policies are taken as they are at the prompt's end: all queries have
    the same frequent keys, and as local ones the latest round(`local_ratio` * length) up to their own, which counts
    like any other though it is seen in any case. A head whose policy keeps all of the prompt has shown nothing that it
    can do without, and sees all of what follows too.

    special_ids, punctuation_ids: which tokens are, in the prompt and after it; if there are none, those of the
        tokenizer, by `bind`.

    Source: Ge et al., "Model Tells You What to Discard: Adaptive KV Cache Compression for LLMs", ICLR 2024,
    https://arxiv.org/abs/2310.01801; the order of the policies is that of its equation 2.
    Deviations: the norm that its equation 1 leaves open is the one above, and averages are taken over the query heads
    of a KV head, of which its models have one. All but the last token of the prompt is profiled, and where an earlier
    turn's cache is gone on with, by the queries of the new tokens only. Attention is not summed up beyond the prompt,
    since that would mean to read all keys: its frequent tokens stay, and what their number grows by with the text is
    filled with the latest tokens. Eviction is every `update_interval` steps, so up to then tokens committed since are
    seen whatever they are. What is evicted never returns.
    Cost: the prompt's attention scores are computed once more, some queries at a time. Per refresh, no keys are read to
    choose, only a byte per KV head and token, and what is chosen is copied. Nothing per step.
    """

    target: Annotated[float, Field(gt=0, le=1)] = 0.95
    local_ratio: Ratio = 0.3
    frequent_ratio: Ratio = 0.3
    update_interval: Annotated[int, Field(ge=1)] = 8
    special_ids: TokenIds = ()
    punctuation_ids: TokenIds = ()

    def bind(self, tokenizer: PreTrainedTokenizerBase) -> Self:
        """The same settings with the tokenizer's special and punctuation tokens, where none are given."""
        return replace(
            self,
            special_ids=self.special_ids or special_ids_of(tokenizer),
            punctuation_ids=self.punctuation_ids or punctuation_ids_of(tokenizer),
        )

    def observe(self, view: LayerView, seen: Seen) -> Choice | None:
        """Profile the heads; `view.memory` is their `Profile`. See `Selector.observe`."""
        length = seen.keys.shape[2]
        attended, beyond = attention_sums(seen, round(self.local_ratio * length))
        ranks = self._ranks(view.text[:length], like=attended)
        ranks[:, 0] = SPECIAL
        frequent = top_positions(attended[None], round(self.frequent_ratio * length))[0]
        ranks.scatter_(1, frequent, ranks.gather(1, frequent).clamp_(max=FREQUENT))

        lost = [(attended * (ranks > policy)).sum(dim=1) for policy in (SPECIAL, PUNCTUATION, FREQUENT)]
        lost += [(beyond * (ranks > FREQUENT)).sum(dim=1), torch.zeros_like(lost[0])]
        recovered = 1 - torch.stack(lost, dim=1) / seen.query.shape[2]
        at_end = self._with_latest(ranks, length)
        n_kept = torch.stack([(at_end <= policy).sum(dim=1) for policy in range(len(POLICIES))], dim=1)
        view.memory = Profile(recovered, n_kept, length, cheapest(recovered, n_kept, self.target), ranks)
        return None

    def choose(self, view: LayerView, query: Tensor, keys: Tensor) -> Choice:
        """Choose what each head's policy keeps; all if no prompt was profiled. See `Selector.choose`."""
        profile, length = view.memory, keys.shape[2]
        if profile is None:
            return super().choose(view, query, keys)
        newer = self._ranks(view.text[profile.ranks.shape[1] : length], like=profile.ranks)
        profile.ranks = torch.cat([profile.ranks, newer], dim=1)
        visible = self._with_latest(profile.ranks, profile.n_prompt) <= profile.policies.unsqueeze(1)
        n_visible = visible.sum(dim=1).tolist()
        if min(n_visible) == length:
            return [slice(0, length)]
        return list(visible.nonzero()[:, 1].split(n_visible))

    @cached_property
    def _rank_of(self) -> dict[int, int]:
        return dict.fromkeys(self.punctuation_ids, PUNCTUATION) | dict.fromkeys(self.special_ids, SPECIAL)

    def _ranks(self, tokens: Sequence[int], like: Tensor) -> Tensor:
        """The first policy that keeps tokens for what they are, [kv_heads, n]; KV heads and device are as of `like`."""
        ranks = [self._rank_of.get(token, FULL) for token in tokens]
        return torch.tensor(ranks, dtype=torch.uint8, device=like.device).repeat(len(like), 1)

    def _with_latest(self, ranks: Tensor, n_prompt: int) -> Tensor:
        """`ranks` of a whole text with those of its latest tokens as they are now."""
        length = ranks.shape[1]
        n_frequent = round(self.frequent_ratio * length) - round(self.frequent_ratio * n_prompt)
        n_local = round(self.local_ratio * length)
        ranks = ranks.clone()
        ranks[:, length - n_frequent :].clamp_(max=FREQUENT)
        ranks[:, length - n_local :].clamp_(max=LOCAL)
        return ranks


def attention_sums(seen: Seen, window: int) -> tuple[Tensor, Tensor]:
    """How much attention each key gets from all queries, and from those `window` tokens after it and later.

    Returns: float64 [kv_heads, length] each, means over the query heads of a KV head; the first sums to the queries.
    """
    attended = torch.zeros(seen.keys.shape[1:3], dtype=torch.float64, device=seen.keys.device)
    beyond = torch.zeros_like(attended)
    for first, of_heads in weights_in_blocks(seen.query, seen.keys, seen.scaling):
        weights = of_heads[0].mean(dim=1)  # [kv_heads, rows, end]
        end = weights.shape[-1]
        attended[:, :end] += weights.sum(dim=1)
        beyond[:, :end] += weights.tril_(first - window).sum(dim=1)
    return attended, beyond


def cheapest(recovered: Tensor, n_kept: Tensor, target: float) -> Tensor:
    """The first policy of each KV head to recover `target`, or the last if that one keeps the whole prompt.

    recovered, n_kept: see `Profile`, [.., policies].

    Returns: indices of `POLICIES`, [..].
    """
    first = (recovered >= target).int().argmax(dim=-1)
    keeps_all = n_kept.gather(-1, first.unsqueeze(-1)).squeeze(-1) == n_kept[..., FULL]
    return first.masked_fill(keeps_all, FULL)


def special_ids_of(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Ids of all tokens that the tokenizer has for other purposes than text, those of chat templates among them."""
    added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return tuple(sorted(added | set(tokenizer.all_special_ids)))


def punctuation_ids_of(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Ids of all tokens whose text is punctuation only (Unicode's categories P), but for spaces around it."""
    if tokenizer not in _PUNCTUATION:  # takes about a second for 100,000 tokens
        ids = sorted(tokenizer.get_vocab().values())
        texts = tokenizer.batch_decode([[i] for i in ids])
        _PUNCTUATION[tokenizer] = tuple(i for i, text in zip(ids, texts, strict=True) if is_punctuation(text.strip()))
    return _PUNCTUATION[tokenizer]


def is_punctuation(text: str) -> bool:
    """Whether a text, of one character at least, has punctuation only."""
    return bool(text) and all(category(character).startswith("P") for character in text)
