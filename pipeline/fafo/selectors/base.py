"""What is seen of one layer's cache under compression: the part that all token-dropping methods share."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import PlainValidator
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

KeyValues = tuple[Tensor, Tensor]  # keys and values, each [batch, kv_heads, n, head_dim]
Part = KeyValues | list[KeyValues]  # the same for all KV heads, or a number of entries each, [1, 1, n, head_dim]
Choice = list[slice] | Tensor | list[Tensor]  # ranges of positions, positions [1, kv_heads, n], or [n] per KV head


def _check_amount(amount: Any) -> Any:
    is_number = type(amount) is int and amount >= 1
    if not is_number and not (type(amount) is float and 0 < amount <= 1):
        raise ValueError(
            "should be a whole number of at least 1, or a share with a decimal point, above 0.0 and up to 1.0"
        )
    return amount


Amount = Annotated[int | float, PlainValidator(_check_amount)]  # how many, or which share of all there are


def count_of(amount: Amount, n: int) -> int:
    """How many of `n` an amount is: itself, or a share of `n`; at least one."""
    return amount if isinstance(amount, int) else max(1, round(amount * n))


@dataclass(frozen=True)
class Seen:
    """A stretch of text, in full attention, as one layer's attention sees it while the prompt is read.

    query: of the stretch, after rotary embedding, [1, heads, rows, head_dim].
    keys, values: of everything up to its end, [1, kv_heads, length, head_dim], length >= rows.
    scaling: of the scores q.k.
    module: the layer's attention.
    """

    query: Tensor
    keys: Tensor
    values: Tensor
    scaling: float
    module: nn.Module


class Selector:
    """Settings of one method that decides which cache tokens are seen. Never changes the cache.

    FAFO's window rows see what it chooses; in lossy decoding every token does. A subclass is a small frozen dataclass
    of hyperparameters (their names are the config keys). It chooses once, from the prompt (`observe`), or anew every
    `update_interval` steps (`choose`). Whatever it answers, tokens committed since then are visible too, so guesses
    never lag behind.
    """

    update_interval: int = 1  # steps that need a choice between two calls of `choose`
    whole_prompt: ClassVar[bool] = False  # must see the whole prompt run: no entries of an earlier turn are reused
    only_lossy: ClassVar[bool] = False  # changes what the model computes of the prompt, which FAFO must not
    budget_key: ClassVar[str | None] = None  # the config key that is an `Amount` of what is seen, if there is one

    def observe(self, view: "LayerView", seen: Seen) -> Choice | None:
        """Look at the prompt, all but its last token, while it is read. By default nothing is done.

        Returns: what is chosen of it for the whole generation; None if `choose` is to be asked, for which `view.memory`
        can hold what was seen.
        """
        return None

    def choose(self, view: "LayerView", query: Tensor, keys: Tensor) -> Choice:
        """Choose the visible positions of one layer; by default all, which is for a prompt without anything to observe.

        Args:
            view: this layer's view; `view.memory` is the method's own, kept for the whole generation.
            query: the root's query after rotary embedding, [1, heads, 1, head_dim].
            keys: the committed keys after rotary embedding, [1, kv_heads, length, head_dim], length >= 1.

        Returns:
            Disjoint ascending slices over positions (nothing is copied), an index [1, kv_heads, n] of distinct
            ascending positions per KV head, or a list of one such index [n], n >= 0, per KV head (these are gathered
            once and kept until the next call).
        """
        return [slice(0, keys.shape[2])]

    def reading(self, model: PreTrainedModel, views: list["LayerView"]) -> AbstractContextManager[None]:
        """What is to be done around the pass that reads the prompt, such as hooks on `model`; by default nothing."""
        return nullcontext()

    def bind(self, tokenizer: PreTrainedTokenizerBase) -> Self:
        """The same settings, knowing what they need of the tokenizer; by default nothing."""
        return self

    def check(self, config: PretrainedConfig) -> None:
        """Raise `UserError` if the method can't work with a model of this config; by default any will do."""
        return


@dataclass
class LayerView:
    """One layer's compressed view of the cache during one generation.

    text: all tokens so far, the root's included; it grows with the generation.
    memory: the selector's own.
    n_visible: cache tokens seen in the latest step, as a mean over the KV heads.
    """

    selector: Selector
    layer: int = 0
    n_layers: int = 1
    text: Sequence[int] = ()
    memory: Any = None
    n_visible: float = 0
    _from_prompt: Choice | None = None
    _n_read: int = 0  # entries that this layer has of the prompt
    _n_prompt: int = 0  # where entries of later tokens begin
    _ranges: list[slice] = field(default_factory=list)  # what is chosen: these, and what is copied
    _copied: Part | None = None
    _chosen_at: int = 0  # where entries that are visible in any case begin
    _steps_left: float = 0

    def observe(self, seen: Seen) -> None:
        """Show the selector a stretch of the prompt."""
        self._n_read = seen.keys.shape[2]
        self._from_prompt = self.selector.observe(self, seen)

    def prompt_ends(self, length: int, see_all: bool) -> None:
        """The cache has `length` entries now; with `see_all` the next step sees all that the layer has of them."""
        self._n_prompt = length
        if see_all:
            self._ranges, self._chosen_at, self._steps_left = [slice(0, self._n_read)], length, 1

    def forget(self) -> None:
        """Choose anew in the next step: the window has not run for a while."""
        if self._steps_left < inf:
            self._steps_left = 0

    def select(self, query: Tensor, keys: Tensor, values: Tensor, n_new: int = 0) -> list[Part]:
        """Return the visible parts of the cache, none of them empty.

        Args:
            query: the root's query, [1, heads, 1, head_dim].
            keys, values: entries, [1, kv_heads, length + n_new, head_dim]; the last `n_new` are not committed, and
                visible in any case.
        """
        end = keys.shape[2]
        if self._steps_left == 0 and end > n_new:
            self._choose(query, keys[:, :, : end - n_new], values[:, :, : end - n_new])
        self._steps_left = max(self._steps_left - 1, 0)
        since = slice(self._chosen_at, end)
        parts: list[Part] = [] if self._copied is None else [self._copied]
        parts += [(keys[:, :, s], values[:, :, s]) for s in _joined([*self._ranges, since])]
        self.n_visible = sum(map(n_entries, parts)) - n_new
        return [part for part in parts if n_entries(part)]

    @property
    def held(self) -> list[Any]:
        """What is kept beside the cache: the selector's memory and copies of entries."""
        return [self.memory, self._copied]

    def _choose(self, query: Tensor, keys: Tensor, values: Tensor) -> None:
        if self._from_prompt is not None:
            choice, self._chosen_at, self._steps_left = self._from_prompt, self._n_prompt, inf
            self._from_prompt = None
        else:
            choice = self.selector.choose(self, query, keys)
            self._chosen_at, self._steps_left = keys.shape[2], self.selector.update_interval
        items = choice if isinstance(choice, list) else []
        index = choice if isinstance(choice, Tensor) else [item for item in items if isinstance(item, Tensor)]
        self._ranges = [item for item in items if isinstance(item, slice)]
        self._copied = _gather(keys, values, index) if len(index) else None


def n_entries(part: Part) -> float:
    """Entries of a part, as a mean over the KV heads."""
    if isinstance(part, list):
        return sum(keys.shape[2] for keys, _ in part) / len(part)
    return part[0].shape[2]


def _joined(ranges: list[slice]) -> list[slice]:
    """The same ascending ranges, adjacent ones joined and empty ones left out."""
    joined: list[slice] = []
    for part in ranges:
        if joined and joined[-1].stop == part.start:
            joined[-1] = slice(joined[-1].start, part.stop)
        elif part.start < part.stop:
            joined.append(part)
    return joined


def _gather(keys: Tensor, values: Tensor, index: Tensor | list[Tensor]) -> Part:
    """Copy the entries at `index`, [1, kv_heads, n] or a list of [n] per KV head, out of the cache."""
    if isinstance(index, list):
        return [(keys[:, head : head + 1, of], values[:, head : head + 1, of]) for head, of in enumerate(index)]
    index = index.unsqueeze(-1).expand(-1, -1, -1, keys.shape[-1])
    return torch.gather(keys, 2, index), torch.gather(values, 2, index)
