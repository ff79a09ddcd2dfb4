"""What methods that score tokens by attention share."""

import torch
from torch import Tensor


def attention_weights(query: Tensor, keys: Tensor, scaling: float, causal: bool = False) -> Tensor:
    """How much each query attends to each key, by query heads in groups of one KV head.

    Args:
        query: [1, heads, rows, head_dim]; keys: [1, kv_heads, n, head_dim].
        causal: the rows are the last of the keys' tokens, and none sees a later one.

    Returns: float32 [1, kv_heads, group, rows, n]; each row sums to 1.
    """
    n_rows, n = query.shape[2], keys.shape[2]
    grouped = query.unflatten(1, (keys.shape[1], -1))
    scores = (grouped @ keys.unsqueeze(2).mT).float() * scaling
    if causal:
        later = torch.ones(n_rows, n, dtype=torch.bool, device=keys.device).triu_(n - n_rows + 1)
        scores = scores.masked_fill_(later, -torch.inf)
    return scores.softmax(dim=-1)


def top_positions(scores: Tensor, n: int) -> Tensor:
    """The `n` positions with the highest scores, ascending.

    Args:
        scores: [1, kv_heads, length]; infinite ones are always or never taken.

    Returns: [1, kv_heads, min(n, length)].
    """
    return scores.topk(min(n, scores.shape[-1]), dim=-1).indices.sort(dim=-1).values
