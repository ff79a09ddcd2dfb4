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
from pipeline.fafo.partial import Partial, attend, attend_part, merge
from pipeline.fafo.selectors.base import LayerView, Part, Seen

ATTENTION_NAME = "fafo"
_STEP: ContextVar["Step"] = ContextVar("fafo_step")
_LOCKS: WeakKeyDictionary[PreTrainedModel, RLock] = WeakKeyDictionary()


@dataclass
class Step:
    """What one forward pass tells the attention of every layer.

    Without a layout the rows are a stretch of text: each sees the cache and the rows before it (prefill).

    views: one a layer, if the layout has window rows, decoding is lossy, or selectors are to see the text.
    lossy: verification rows see what window rows do, and what was drafted. There is but one, the root.
    """

    cache: FullCache
    layout: Layout | None = None
    views: list[LayerView] = field(default_factory=list)
    exact: bool = False
    lossy: bool = False
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
    dropout: float = 0.0,
    *,
    scaling: float,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as the running step's layout says, and leave the rows' keys and values in the step's cache.

    Args:
        query: [batch, heads, rows, head_dim]; key, value: [batch, kv_heads, rows, head_dim].
        dropout: unused; it is where transformers' own functions have it, which wrappers such as kvpress's rely on.

    Returns: [batch, rows, heads, head_dim], and no weights.
    """
    layer = int(module.layer_idx)  # type: ignore[arg-type]  # every attention module has one
    if torch.compiler.is_compiling():
        return attention_operator(query, key, value, layer, scaling), None
    step = _STEP.get(None)
    if step is None:
        raise ValueError('attention "fafo" works only inside FAFO\'s decoding loop, which says what step is running')
    return attend_step(step, layer, query, key, value, scaling, module), None


@torch.library.custom_op("fafo::attention", mutates_args=())
def attention_operator(query: Tensor, key: Tensor, value: Tensor, layer: int, scaling: float) -> Tensor:
    """`attend_step` of the running step, for graphs. There may be more rows than the step has; they give zeros."""
    step = _STEP.get()
    n_rows = step.n_rows
    n_more = query.shape[2] - n_rows
    query, key, value = (t[:, :, :n_rows] for t in (query, key, value))
    output = attend_step(step, layer, query, key, value, scaling, module=None)
    return pad(output, (0, 0, 0, 0, 0, n_more)) if n_more else output.contiguous()


@attention_operator.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, layer: int, scaling: float) -> Tensor:
    batch, heads, rows, head_dim = query.shape
    return query.new_empty(batch, rows, heads, head_dim)


def attend_step(
    step: Step, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, module: nn.Module | None
) -> Tensor:
    """Attention of one layer; shapes are those of `fafo_attention`. module: the layer's, if it is run uncompiled."""
    cache, layout = step.cache, step.layout
    n_rows = query.shape[2]
    keys, values = cache.append(layer, key, value)
    if layout is None:
        new = keys[:, :, cache.length :], values[:, :, cache.length :]
        among_new = attend(query, new, scaling, causal=True)
        output = _see(query, _committed(cache, keys, values), among_new, scaling)
        if step.views:
            assert module is not None  # text is never run compiled
            step.views[layer].observe(Seen(query, keys, values, scaling, module))
        return output.transpose(1, 2)

    if step.lossy:
        parts = step.views[layer].select(query, keys, values, n_new=1 + cache.n_drafted)
        return merge([attend_part(query, part, scaling) for part in parts]).to(query.dtype).transpose(1, 2)

    if n_rows == 1:
        output, _ = attend(query, (keys, values), scaling)
        return output.transpose(1, 2)

    outputs = [_verification(step, query[:, :, : layout.n_verify], keys, values, scaling)]
    if layout.n_verify < n_rows:
        outputs.append(_window(step, layer, query, keys, values, scaling))
    return torch.cat(outputs, dim=2).transpose(1, 2)


def _verification(step: Step, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    """Root and guess rows: they see the whole cache, and among the new rows their ancestors.

    Args:
        query: [1, heads, n_verify, head_dim]; keys, values: cache and new rows, [1, kv_heads, length + rows, head_dim].
    """
    if step.exact:
        return exact_attention(query, keys, values, scaling, step.plan(query.device))
    start, n_verify = step.cache.length, query.shape[2]
    new = keys[:, :, start : start + n_verify], values[:, :, start : start + n_verify]
    among_new = attend(query, new, scaling, mask=step.mask(query)[:n_verify, :n_verify])
    return _see(query, _committed(step.cache, keys, values), among_new, scaling)


def _window(step: Step, layer: int, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    """Window rows: they see what the selector chose of the cache, and among the new rows what the mask says.

    Args:
        query: of all rows; keys, values as in `_verification`.
    """
    assert step.layout is not None
    n_verify, cache = step.layout.n_verify, step.cache
    rows, new = query[:, :, n_verify:], (keys[:, :, cache.length :], values[:, :, cache.length :])
    among_new = attend(rows, new, scaling, mask=step.mask(query)[n_verify:])
    selected = step.views[layer].select(query[:, :, :1], *cache.entries(layer))
    return _see(rows, selected, among_new, scaling)


def _committed(cache: FullCache, keys: Tensor, values: Tensor) -> list[Part]:
    return [(keys[:, :, : cache.length], values[:, :, : cache.length])] if cache.length else []


def _see(query: Tensor, cached: list[Part], among_new: Partial, scaling: float) -> Tensor:
    """Attention of rows that all see all of `cached`, joined with what they see among the new rows."""
    return merge([among_new, *(attend_part(query, part, scaling) for part in cached)]).to(query.dtype)


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
