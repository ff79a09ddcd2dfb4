"""Attention whose result for a token does not depend on what it is batched with, bit by bit.

A sum of floating-point numbers depends on its order. In the default mode a token's scores are summed in the order
that its step happens to have: the cache first, then the step's own rows, with as many query rows as there are guesses.
Here the order is a matter of the token's position alone. Keys are reduced in blocks of `BLOCK` absolute positions, each
by a kernel call of one fixed shape (`TILE` query rows, always masked), and the blocks are merged from first to last. For
a guess, the keys of its ancestors are gathered into their places in the last blocks, so that they look as they would if
they had been decoded one by one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.fafo.partial import Partial, attend, merge
from pipeline.fafo.tree import GuessTree

BLOCK = 128  # keys
TILE = 16  # query rows; a step's rows are padded to a multiple, which also fixes the kernels of the linear layers
MAX_LEVEL = TILE  # a guess and the root fit into one tile


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
        parts.append((output, lse.masked_fill(~sees_any, -torch.inf)))
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
