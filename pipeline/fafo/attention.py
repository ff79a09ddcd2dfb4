"""One attention function for all models: an exact merge of unmasked pieces over the cache and one small masked piece.

It is registered with transformers under the name "fafo" and learns from the keyword argument `fafo_step` which rows a
forward pass has. So modeling code is neither copied nor patched.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from pipeline.fafo.cache import FullCache
from pipeline.fafo.exact import ExactPlan, exact_attention
from pipeline.fafo.layout import Layout
from pipeline.fafo.partial import Partial, attend, merge
from pipeline.fafo.selectors.base import KeyValues, LayerView

ATTENTION_NAME = "fafo"
_LOCKS: WeakKeyDictionary[PreTrainedModel, RLock] = WeakKeyDictionary()


@dataclass
class Step:
    """What one forward pass tells the attention of every layer.

    Without a layout the rows are a stretch of text: each sees the cache and the rows before it (prefill).
    """

    cache: FullCache
    layout: Layout | None = None
    views: list[LayerView] = field(default_factory=list)  # one a layer, if the layout has window rows
    exact: bool = False
    _masks: dict[torch.device, Tensor] = field(default_factory=dict)
    _plans: dict[torch.device, ExactPlan] = field(default_factory=dict)

    def mask(self, like: Tensor) -> Tensor:
        """Additive mask among the new rows, [rows, rows], made once per device."""
        assert self.layout is not None
        if like.device not in self._masks:
            visible = torch.from_numpy(self.layout.visible)
            mask = torch.zeros(visible.shape, dtype=like.dtype).masked_fill_(~visible, -torch.inf)
            self._masks[like.device] = mask.to(like.device)
        return self._masks[like.device]

    def plan(self, device: torch.device) -> ExactPlan:
        """Arrangement of the verification rows in exact mode, made once per device."""
        assert self.layout is not None
        if device not in self._plans:
            self._plans[device] = ExactPlan.of(self.layout.tree, self.cache.length, device)
        return self._plans[device]


def fafo_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    fafo_step: Step | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as the step's layout says, and leave the rows' keys and values in the step's cache.

    Args:
        query: [batch, heads, rows, head_dim]; key, value: [batch, kv_heads, rows, head_dim].

    Returns: [batch, rows, heads, head_dim], and no weights.
    """
    if fafo_step is None:
        raise ValueError('attention "fafo" works only inside FAFO\'s decoding loop: it needs the argument fafo_step')
    cache, layout = fafo_step.cache, fafo_step.layout
    n_rows = query.shape[2]
    layer = int(module.layer_idx)  # type: ignore[arg-type]  # every attention module has one
    keys, values = cache.append(layer, key, value)
    if n_rows == 1:
        output, _ = attend(query, (keys, values), scaling)
        return output.transpose(1, 2), None

    committed = [(keys[:, :, : cache.length], values[:, :, : cache.length])] if cache.length else []
    new = keys[:, :, cache.length :], values[:, :, cache.length :]
    if layout is None:
        among_new = attend(query, new, scaling, causal=True)
        return see(query, committed, among_new, scaling).transpose(1, 2), None

    n_verify = layout.n_verify
    out, lse = attend(query, new, scaling, mask=fafo_step.mask(query))
    if fafo_step.exact:
        plan = fafo_step.plan(query.device)
        outputs = [exact_attention(query[:, :, :n_verify], keys, values, scaling, plan)]
    else:
        among_new = out[:, :, :n_verify], lse[:, :, :n_verify]
        outputs = [see(query[:, :, :n_verify], committed, among_new, scaling)]
    if n_verify < n_rows:
        keys, values = cache.entries(layer)
        selected = fafo_step.views[layer].select(query[:, :, :1], keys, values)
        outputs.append(see(query[:, :, n_verify:], selected, (out[:, :, n_verify:], lse[:, :, n_verify:]), scaling))
    return torch.cat(outputs, dim=2).transpose(1, 2), None


AttentionInterface.register(ATTENTION_NAME, fafo_attention)


@contextmanager
def fafo_attention_on(model: PreTrainedModel) -> Iterator[None]:
    """Let `model` attend by `fafo_attention`; afterwards, whatever happens, it attends as before.

    Threads that decode with the same model take turns.
    """
    with _LOCKS.setdefault(model, RLock()):
        before = model.config._attn_implementation
        model.set_attn_implementation(ATTENTION_NAME)
        try:
            yield
        finally:
            model.set_attn_implementation(before)


def see(query: Tensor, cached: list[KeyValues], among_new: Partial, scaling: float) -> Tensor:
    """Attention of rows that all see all of `cached`, joined with what they see among the new rows."""
    return merge([among_new, *(attend(query, part, scaling) for part in cached)]).to(query.dtype)
