"""One attention function for all models: an exact merge of unmasked pieces over the cache and one small masked piece.

It is registered with transformers under the name "fafo" and learns from the keyword argument `fafo_step` which rows a
forward pass has. So modeling code is neither copied nor patched.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from pipeline.fafo.cache import FullCache
from pipeline.fafo.layout import Layout
from pipeline.fafo.selectors.base import KeyValues, LayerView

ATTENTION_NAME = "fafo"

Partial = tuple[
    Tensor, Tensor
]  # attention over some of the keys [batch, heads, rows, head_dim], log-sum-exp [.., rows]


@dataclass
class Step:
    """What one forward pass tells the attention of every layer.

    Without a layout the rows are a stretch of text: each sees the cache and the rows before it (prefill).
    """

    cache: FullCache
    layout: Layout | None = None
    views: list[LayerView] = field(default_factory=list)  # one a layer, if the layout has window rows
    _masks: dict[torch.device, Tensor] = field(default_factory=dict)

    def mask(self, like: Tensor) -> Tensor:
        """Additive mask among the new rows, [rows, rows], made once per device."""
        assert self.layout is not None
        if like.device not in self._masks:
            visible = torch.from_numpy(self.layout.visible)
            mask = torch.zeros(visible.shape, dtype=like.dtype).masked_fill_(~visible, -torch.inf)
            self._masks[like.device] = mask.to(like.device)
        return self._masks[like.device]


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
    outputs = [see(query[:, :, :n_verify], committed, (out[:, :, :n_verify], lse[:, :, :n_verify]), scaling)]
    if n_verify < n_rows:
        keys, values = cache.entries(layer)
        selected = fafo_step.views[layer].select(query[:, :, :1], keys, values)
        outputs.append(see(query[:, :, n_verify:], selected, (out[:, :, n_verify:], lse[:, :, n_verify:]), scaling))
    return torch.cat(outputs, dim=2).transpose(1, 2), None


AttentionInterface.register(ATTENTION_NAME, fafo_attention)


@contextmanager
def fafo_attention_on(model: PreTrainedModel) -> Iterator[None]:
    """Let `model` attend by `fafo_attention`; afterwards, whatever happens, it attends as before."""
    before = model.config._attn_implementation
    model.set_attn_implementation(ATTENTION_NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def see(query: Tensor, cached: list[KeyValues], among_new: Partial, scaling: float) -> Tensor:
    """Attention of rows that all see all of `cached`, joined with what they see among the new rows."""
    return merge([among_new, *(attend(query, part, scaling) for part in cached)]).to(query.dtype)


def attend(
    query: Tensor, key_values: KeyValues, scaling: float, mask: Tensor | None = None, causal: bool = False
) -> Partial:
    """Attend over some of the keys, grouped-query heads included, without repeating keys or values.

    Args:
        query: [batch, heads, rows, head_dim].
        key_values: [batch, kv_heads, n, head_dim] each, n >= 1.
        mask: additive, [rows, n]; each row sees at least one key. `causal`: row i sees keys 0..i.

    Returns: the attention's output in the query's dtype, and the float32 log-sum-exp of its scores.
    """
    keys, values = key_values
    if query.device.type == "cpu":
        # The kernel behind scaled_dot_product_attention, which itself doesn't return the log-sum-exp.
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, keys, values, 0.0, causal, attn_mask=mask, scale=scaling
        )
    batch, heads, rows, head_dim = query.shape
    kv_heads = keys.shape[1]
    folded = query.reshape(batch, kv_heads, -1, head_dim)  # heads of one group become rows
    if causal:
        mask = query.new_full((rows, rows), -torch.inf).triu_(1)
    if mask is not None:
        mask = mask.repeat(heads // kv_heads, 1)
    output, lse = _attend_folded(folded, keys, values, scaling, mask)
    return output.reshape(batch, heads, rows, head_dim), lse.reshape(batch, heads, rows)


def _attend_folded(query: Tensor, keys: Tensor, values: Tensor, scaling: float, mask: Tensor | None) -> Partial:
    """`attend` with as many query heads as KV heads."""
    if query.device.type == "cuda" and mask is None and query.shape[-1] % 8 == 0:
        output, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, keys, values, None, True, scale=scaling
        )
        return output, lse[:, :, : query.shape[2]]  # the kernel pads its rows
    scores = (query.float() * scaling) @ keys.float().mT
    if mask is not None:
        scores = scores + mask.float()
    lse = scores.logsumexp(dim=-1)
    weights = (scores - lse.unsqueeze(-1)).exp_()
    return (weights.to(values.dtype) @ values), lse


def merge(partials: list[Partial]) -> Tensor:
    """Join attention over disjoint sets of keys into attention over their union, exactly.

    Each part counts by its share of the softmax's denominator. Returns float32 where there was something to join.
    """
    return reduce(_merge_two, partials)[0]


def _merge_two(a: Partial, b: Partial) -> Partial:
    (out_a, lse_a), (out_b, lse_b) = a, b
    share_of_b = torch.sigmoid(lse_b - lse_a).unsqueeze(-1)
    return torch.lerp(out_a.float(), out_b.float(), share_of_b), torch.logaddexp(lse_a, lse_b)
