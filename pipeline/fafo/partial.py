"""Attention over a part of the keys, and joining such parts exactly by log-sum-exp."""

from functools import reduce

import torch
from torch import Tensor

from pipeline.fafo.selectors.base import KeyValues

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
