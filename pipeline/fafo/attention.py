"""One attention function for all models: an exact merge of unmasked pieces over the cache and one small masked piece.

It is registered with transformers under the name "fafo" and learns from `running` which rows a forward pass has. So
modeling code is neither copied nor patched, and a compiled model, in which attention is one opaque operator, serves
steps of all kinds.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AttentionInterface, PreTrainedModel

from pipeline.fafo.cache import FullCache
from pipeline.fafo.exact import ExactPlan, exact_attention
from pipeline.fafo.layout import Layout
from pipeline.fafo.partial import Partial, attend, merge
from pipeline.fafo.selectors.base import KeyValues, LayerView

ATTENTION_NAME = "fafo"
_STEP: ContextVar["Step"] = ContextVar("fafo_step")
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

    @property
    def n_rows(self) -> int:
        """Rows of a step with a layout."""
        assert self.layout is not None
        return len(self.layout.tokens)

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


@contextmanager
def running(step: Step) -> Iterator[None]:
    """Tell the attention of all layers what the forward passes inside are."""
    token = _STEP.set(step)
    try:
        yield
    finally:
        _STEP.reset(token)


def fafo_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as the running step's layout says, and leave the rows' keys and values in the step's cache.

    Args:
        query: [batch, heads, rows, head_dim]; key, value: [batch, kv_heads, rows, head_dim].

    Returns: [batch, rows, heads, head_dim], and no weights.
    """
    layer = int(module.layer_idx)  # type: ignore[arg-type]  # every attention module has one
    if torch.compiler.is_compiling():
        return attention_operator(query, key, value, layer, scaling), None
    step = _STEP.get(None)
    if step is None:
        raise ValueError('attention "fafo" works only inside FAFO\'s decoding loop, which says what step is running')
    return attend_step(step, layer, query, key, value, scaling), None


@torch.library.custom_op("fafo::attention", mutates_args=())
def attention_operator(query: Tensor, key: Tensor, value: Tensor, layer: int, scaling: float) -> Tensor:
    """`attend_step` of the running step, for graphs. There may be more rows than the step has; they give zeros."""
    step = _STEP.get()
    n_rows = step.n_rows
    n_more = query.shape[2] - n_rows
    query, key, value = (t[:, :, :n_rows] for t in (query, key, value))
    output = attend_step(step, layer, query, key, value, scaling)
    return pad(output, (0, 0, 0, 0, 0, n_more)) if n_more else output.contiguous()


@attention_operator.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, layer: int, scaling: float) -> Tensor:
    batch, heads, rows, head_dim = query.shape
    return query.new_empty(batch, rows, heads, head_dim)


def attend_step(step: Step, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Attention of one layer; shapes are those of `fafo_attention`."""
    cache, layout = step.cache, step.layout
    n_rows = query.shape[2]
    keys, values = cache.append(layer, key, value)
    if n_rows == 1:
        output, _ = attend(query, (keys, values), scaling)
        return output.transpose(1, 2)

    committed = [(keys[:, :, : cache.length], values[:, :, : cache.length])] if cache.length else []
    new = keys[:, :, cache.length :], values[:, :, cache.length :]
    if layout is None:
        among_new = attend(query, new, scaling, causal=True)
        return see(query, committed, among_new, scaling).transpose(1, 2)

    n_verify = layout.n_verify
    out, lse = attend(query, new, scaling, mask=step.mask(query))
    if step.exact:
        plan = step.plan(query.device)
        outputs = [exact_attention(query[:, :, :n_verify], keys, values, scaling, plan)]
    else:
        among_new = out[:, :, :n_verify], lse[:, :, :n_verify]
        outputs = [see(query[:, :, :n_verify], committed, among_new, scaling)]
    if n_verify < n_rows:
        keys, values = cache.entries(layer)
        selected = step.views[layer].select(query[:, :, :1], keys, values)
        outputs.append(see(query[:, :, n_verify:], selected, (out[:, :, n_verify:], lse[:, :, n_verify:]), scaling))
    return torch.cat(outputs, dim=2).transpose(1, 2)


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
