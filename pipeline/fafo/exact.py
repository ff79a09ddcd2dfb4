"""Forward passes whose result for a token does not depend on what it is batched with, bit by bit.

A sum of floating-point numbers depends on its order, and the order on the kernel: matrix products of 1, 16 and 64 rows
may add up the same row differently, and attention sums the cache first and a step's own rows after it, wherever the
step happens to begin. Here the order is a matter of the token and its position alone:

- Linear layers see the rows that are verified in tiles of `TILE` rows, the last one padded (`FixedShapeLinear`).
- Attention reduces keys in blocks of `BLOCK` absolute positions, each by a kernel call of one fixed shape (`TILE` query
  rows, always masked), and merges the blocks from first to last. For a guess, the keys of its ancestors are gathered
  into their places in the last blocks, so that they look as they would if they had been decoded one by one.

What window rows compute need not be exact and is not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from pipeline.fafo.partial import Partial, attend, merge
from pipeline.fafo.tree import GuessTree

BLOCK = 128  # keys
TILE = 32  # rows; elementwise kernels on CPUs round what is left over after 32 numbers differently
MAX_LEVEL = TILE  # a guess and the root fit into one tile


class FixedShapeLinear(TorchFunctionMode):
    """While active, linear layers take a step's first rows in tiles of `TILE`, so that each sees one kernel.

    n_rows: rows of the step; n_exact: how many of them are tiled, a multiple of `TILE`. An input with another number of
    rows (what goes to the head) is tiled as a whole.
    """

    def __init__(self, n_rows: int, n_exact: int) -> None:
        super().__init__()
        self.n_rows = n_rows
        self.n_exact = n_exact

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not linear:
            return func(*args, **(kwargs or {}))
        rows, *parameters = args
        n_exact = self.n_exact if rows.shape[-2] == self.n_rows else rows.shape[-2]
        tiles = [*rows[..., :n_exact, :].split(TILE, dim=-2)]
        if n_exact < rows.shape[-2]:
            tiles.append(rows[..., n_exact:, :])
        return torch.cat([linear(tile, *parameters, **(kwargs or {})) for tile in tiles], dim=-2)


@dataclass(frozen=True)
class ExactPlan:
    """How the verification rows of one step are arranged; the same for all layers.

    Each row belongs to one chain, a way from the root to a leaf. n_full: blocks that are committed as a whole; the tail
    is what follows.

    tail_keys: where each slot of a chain's tail lies among the cache and the new rows, [chains, tail blocks * BLOCK].
    chain_rows: the rows of each chain, padded, [chains, TILE].
    tail_visible: [tail blocks, chains, 1, TILE, BLOCK].
    place: for each row its index among the chains' rows, [n_verify].
    """

    n_verify: int
    n_full: int
    tail_keys: Tensor
    chain_rows: Tensor
    tail_visible: Tensor
    place: Tensor

    @classmethod
    def of(cls, tree: GuessTree, length: int, device: torch.device) -> "ExactPlan":
        """Plan for the rows of `tree` behind `length` committed entries."""
        n_full, n_in_tail = divmod(length, BLOCK)
        chains = tree.chains()
        n_slots = BLOCK * ((n_in_tail + max(map(len, chains)) - 1) // BLOCK + 1)
        tail_keys = torch.zeros(len(chains), n_slots, dtype=torch.long)
        tail_keys[:, :n_in_tail] = torch.arange(n_full * BLOCK, length)
        chain_rows = torch.zeros(len(chains), TILE, dtype=torch.long)
        visible = torch.zeros(len(chains), TILE, n_slots, dtype=torch.bool)
        place = torch.zeros(len(tree), dtype=torch.long)
        for i, chain in enumerate(chains):
            rows = torch.tensor(chain)
            tail_keys[i, n_in_tail : n_in_tail + len(chain)] = length + rows
            chain_rows[i, : len(chain)] = rows
            visible[i, : len(chain)] = torch.arange(n_slots) <= n_in_tail + torch.arange(len(chain)).unsqueeze(1)
            place[rows] = i * TILE + torch.arange(len(chain))
        blocks = visible.unflatten(2, (-1, BLOCK)).permute(2, 0, 1, 3).unsqueeze(2)
        return cls(len(tree), n_full, *(t.to(device) for t in (tail_keys, chain_rows, blocks, place)))


def exact_attention(query: Tensor, keys: Tensor, values: Tensor, scaling: float, plan: ExactPlan) -> Tensor:
    """Attend from the verification rows to all that they see.

    Args:
        query: of the verification rows, [1, heads, n_verify, head_dim].
        keys, values: committed entries and the step's rows, [1, kv_heads, length + rows, head_dim].

    Returns: [1, heads, n_verify, head_dim].
    """
    by_chain = query[0, :, plan.chain_rows].transpose(0, 1)  # [chains, heads, TILE, head_dim]
    parts: list[Partial] = []
    if plan.n_full:
        parts += _over_full_blocks(by_chain, keys, values, scaling, plan.n_full)
    tail = [
        t[0, :, plan.tail_keys].transpose(0, 1).unflatten(2, (-1, BLOCK)).transpose(1, 2) for t in (keys, values)
    ]  # each [chains, tail blocks, kv_heads, BLOCK, head_dim]
    for block, visible in enumerate(plan.tail_visible):
        mask = query.new_zeros(visible.shape).masked_fill_(~visible, -torch.inf)
        output, lse = attend(by_chain, (tail[0][:, block], tail[1][:, block]), scaling, mask)
        sees_any = visible.any(-1)  # [chains, 1, TILE]
        parts.append((output.contiguous(), lse.masked_fill(~sees_any, -torch.inf).contiguous()))
    merged = merge(parts).to(query.dtype)  # [chains, heads, TILE, head_dim]
    return merged.transpose(1, 2).flatten(0, 1)[plan.place].transpose(0, 1).unsqueeze(0)


def _over_full_blocks(by_chain: Tensor, keys: Tensor, values: Tensor, scaling: float, n_full: int) -> list[Partial]:
    """Attention over each committed block, from first to last; a block is an item of a kernel call's batch."""
    blocks = [t[0, :, : n_full * BLOCK].unflatten(1, (n_full, BLOCK)).transpose(0, 1) for t in (keys, values)]
    no_mask = by_chain.new_zeros(1, 1, TILE, BLOCK).expand(n_full, -1, -1, -1)
    per_chain = [
        attend(tile.expand(n_full, -1, -1, -1), (blocks[0], blocks[1]), scaling, no_mask) for tile in by_chain
    ]  # outputs [n_full, heads, TILE, head_dim]
    outputs = torch.stack([output for output, _ in per_chain], dim=1)
    lses = torch.stack([lse for _, lse in per_chain], dim=1)
    return list(zip(outputs, lses, strict=True))
