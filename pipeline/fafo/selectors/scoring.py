"""What methods that score tokens by attention share."""

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import AfterValidator, Field
from torch import Tensor
from torch.nn.functional import avg_pool1d

from pipeline.fafo.selectors.base import Seen


def _check_odd(size: int) -> int:
    if size % 2 == 0:
        raise ValueError("should be odd, so that a position is in the middle of what it is averaged with")
    return size


KernelSize = Annotated[int, Field(ge=1), AfterValidator(_check_odd)]  # positions that pooling averages over


def attention_weights(query: Tensor, keys: Tensor, scaling: float, causal: bool = False) -> Tensor:
    """How much each query attends to each key, by query heads in groups of one KV head.

    Args:
        query: [1, heads, rows, head_dim]; keys: [1, kv_heads, n, head_dim].
        causal: the rows are the last of the keys' tokens, and none sees a later one.

    Returns: float32 [1, kv_heads, group, rows, n]; each row sums to 1.
    """
    n_rows, n = query.shape[2], keys.shape[2]
    folded = query.unflatten(1, (keys.shape[1], -1)).flatten(2, 3)  # a group's heads become rows
    # In float32: q.k before it is scaled is beyond float16 in some models.
    scores = (folded.float() @ keys.float().mT).mul_(scaling).unflatten(2, (-1, n_rows))
    if causal:
        later = torch.ones(n_rows, n, dtype=torch.bool, device=keys.device).triu_(n - n_rows + 1)
        scores = scores.masked_fill_(later, -torch.inf)
    return scores.softmax(dim=-1)


def weights_in_blocks(
    query: Tensor, keys: Tensor, scaling: float, n_at_once: int | None = None
) -> Iterator[tuple[int, Tensor]]:
    """`attention_weights` of rows that are the last of the keys' tokens, some rows at a time.

    n_at_once: about how many weights may be in memory; one row's in any case. By default as many as caches hold, on a
        CPU, or else enough to keep a GPU busy.

    Yields: the position of a block's first row, and its weights on all keys up to its last row's own.
    """
    heads, n_rows, length = query.shape[1], query.shape[2], keys.shape[2]
    if n_at_once is None:
        n_at_once = 2**21 if keys.device.type == "cpu" else 2**27
    n_block = max(1, n_at_once // (heads * length))
    for rows in query.split(n_block, dim=2):
        first = length - n_rows
        end = first + rows.shape[2]
        yield first, attention_weights(rows, keys[:, :, :end], scaling, causal=True)
        n_rows -= rows.shape[2]


def top_positions(scores: Tensor, n: int) -> Tensor:
    """The `n` positions with the highest scores, ascending.

    Args:
        scores: [1, kv_heads, length]; infinite ones are always or never taken.

    Returns: [1, kv_heads, min(n, length)].
    """
    return scores.topk(min(n, scores.shape[-1]), dim=-1).indices.sort(dim=-1).values


def window_saliency(seen: Seen, window_size: int, kernel_size: int) -> Tensor:
    """How much the latest tokens of a prompt, the observation window, attend to each earlier one.

    The mean over the window's queries and the query heads of a KV head (sums would order tokens alike), then over
    `kernel_size` neighbours, with zeros beyond the first position and in the window. If fewer than `window_size` tokens
    were read, as when a prompt continues an earlier turn, only these are asked; the window is no shorter for it.

    Cost: `window_size` scores per query head and position.

    Returns: float32 [1, kv_heads, length], infinite in the window: the last `window_size` positions.
    """
    weights = attention_weights(seen.query[:, :, -window_size:], seen.keys, seen.scaling, causal=True)
    saliency = weights.mean(dim=(2, 3))
    saliency[:, :, -window_size:] = 0
    saliency = avg_pool1d(saliency, kernel_size, stride=1, padding=kernel_size // 2)
    saliency[:, :, -window_size:] = torch.inf
    return saliency
