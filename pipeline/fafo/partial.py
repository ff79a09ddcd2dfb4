"""Attention over a part of the keys, and joining such parts exactly by log-sum-exp."""

from functools import reduce

import torch
from torch import Tensor

from pipeline.fafo.selectors.base import KeyValues, Part

Partial = tuple[Tensor, Tensor]  # output [batch, heads, rows, head_dim], log-sum-exp of the scores [batch, heads, rows]


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
    group = heads // keys.shape[1]
    if causal:  # rows and keys are a stretch of text, in which each key is read by many rows: repeating it is cheap
        keys, values = (t.repeat_interleave(group, dim=1) for t in (keys, values))
        return _attend_ungrouped(query, keys, values, scaling, causal=True)
    folded = query.reshape(batch, keys.shape[1], -1, head_dim)  # heads of one group become rows
    if mask is not None:
        mask = mask.repeat(*(1,) * (mask.dim() - 2), group, 1)
    output, lse = _attend_ungrouped(folded, keys, values, scaling, mask)
    return output.reshape(batch, heads, rows, head_dim), lse.reshape(batch, heads, rows)


def attend_part(query: Tensor, part: Part, scaling: float) -> Partial:
    """Attend over all entries of a part, whose KV heads may have numbers of entries of their own, or none."""
    if not isinstance(part, list):
        return attend(query, part, scaling)
    of_heads = [
        attend(group, entries, scaling) if entries[0].shape[2] else _nothing(group)
        for group, entries in zip(query.chunk(len(part), dim=1), part, strict=True)
    ]
    outputs, lses = zip(*of_heads, strict=True)
    return torch.cat(outputs, dim=1), torch.cat(lses, dim=1)


def _nothing(query: Tensor) -> Partial:
    return torch.zeros_like(query), query.new_full(query.shape[:-1], -torch.inf, dtype=torch.float32)


def _attend_ungrouped(
    query: Tensor, keys: Tensor, values: Tensor, scaling: float, mask: Tensor | None = None, causal: bool = False
) -> Partial:
    """`attend` with as many query heads as KV heads, not on a CPU."""
    if query.device.type == "cuda" and mask is None and query.shape[-1] % 8 == 0:
        output, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, keys, values, None, True, is_causal=causal, scale=scaling
        )
        return output, lse[:, :, : query.shape[2]]  # the kernel pads its rows
    scores = (query.float() * scaling) @ keys.float().mT
    if causal:
        mask = scores.new_full(scores.shape[-2:], -torch.inf).triu_(1)
    if mask is not None:
        scores = scores + mask
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
