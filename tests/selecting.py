"""All selectors, to be drawn or gone through, and a view of random keys on which they choose."""

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from pipeline.fafo.selectors import (
    H2O,
    TOVA,
    FastGen,
    FastKV,
    Full,
    LayerView,
    PyramidKV,
    Quest,
    Selector,
    SnapKV,
    StreamLLM,
)
from pipeline.fafo.selectors.base import KeyValues, Part, Seen, n_entries
from tests.tiny import VOCABULARY

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 6
SCALING = HEAD_DIM**-0.5

SMALL: list[Selector] = [
    Full(), StreamLLM(2, 5), StreamLLM(0, 1), StreamLLM(1, 0.3), Quest(4, 2, 3), Quest(1, 1, 1), Quest(5, 0.4, 4),
    H2O(4, 0.5, 3), H2O(0.3, 0.0, 1), TOVA(3, 2), TOVA(0.25, 1), SnapKV(6, 2, 3), SnapKV(0.2, 4, 1),
    PyramidKV(8, 2, 3, beta=3), FastKV(0.2, 2, 3, num_init=1), FastGen(0.6, 0.2, 0.2, 3, (0,), (1, 2)),
]  # fmt: skip
KEEP_ALL: list[Selector] = [
    Full(), StreamLLM(0, 1000), StreamLLM(3, 1.0), Quest(7, 1000, 3), Quest(3, 1.0, 2), H2O(1000), H2O(1.0, 0.5, 2),
    TOVA(1000), TOVA(1.0, 3), SnapKV(1000), SnapKV(1.0, 4, 3), PyramidKV(1.0, 2, 3), FastKV(1.0, 2, 3),
    FastGen(1.0, update_interval=2),
]  # fmt: skip


def amounts(most: int) -> st.SearchStrategy[int | float]:
    return st.integers(1, most) | st.floats(0.01, 1.0)


intervals = st.integers(1, 5)
odd = st.sampled_from([1, 3, 5])
ids = st.lists(st.integers(0, VOCABULARY - 1), max_size=4).map(tuple)
any_selector: st.SearchStrategy[Selector] = st.one_of(
    st.just(Full()),
    st.builds(StreamLLM, num_init=st.integers(0, 5), num_local=amounts(80)),
    st.builds(Quest, page_size=st.integers(1, 9), top_k=amounts(12), update_interval=intervals),
    st.builds(H2O, budget=amounts(40), recent=st.floats(0, 1), update_interval=intervals),
    st.builds(TOVA, budget=amounts(40), update_interval=intervals),
    st.builds(SnapKV, budget=amounts(40), window_size=st.integers(1, 40), kernel_size=odd),
    st.builds(PyramidKV, budget=amounts(40), window_size=st.integers(1, 9), kernel_size=odd, beta=st.integers(1, 30)),
    st.builds(FastKV, kv_retention_rate=st.floats(0.01, 1), window_size=st.integers(1, 9), kernel_size=odd),
    st.builds(
        FastGen,
        target=st.floats(0.05, 1),
        local_ratio=st.floats(0, 1),
        frequent_ratio=st.floats(0, 1),
        update_interval=intervals,
        special_ids=ids,
        punctuation_ids=ids,
    ),
)


class Cache:
    """Random keys and queries, of which ever more are committed, and the view of one layer."""

    def __init__(self, selector: Selector, n_prompt: int, seed: int = 0, most: int = 200) -> None:
        self.keys = draw(seed, KV_HEADS, most)
        self.queries = draw(seed + 1000, HEADS, most)
        text = [int(t) for t in torch.randint(VOCABULARY, (most,), generator=torch.Generator().manual_seed(seed))]
        self.text = text
        self.view = LayerView(selector, layer=0, n_layers=2, text=text)
        self.length = n_prompt
        self.read_prompt()

    def read_prompt(self) -> None:
        """Show the view all that there is so far."""
        if self.length:
            query, keys = self.queries[:, :, : self.length], self.keys[:, :, : self.length]
            self.view.observe(Seen(query, keys, positions_as_values(self.length), SCALING, nn.Identity()))
            self.view.prompt_ends(self.length, see_all=False)

    def seen(self) -> list[list[int]]:
        """Positions that are seen in the next step, per KV head."""
        query = self.queries[:, :, self.length : self.length + 1]
        return visible_positions(self.view, query, self.keys[:, :, : self.length])


def draw(seed: int, heads: int, n: int) -> Tensor:
    return torch.randn(1, heads, n, HEAD_DIM, generator=torch.Generator().manual_seed(seed))


def positions_as_values(n: int) -> Tensor:
    return torch.arange(n, dtype=torch.float32)[None, None, :, None].expand(1, KV_HEADS, -1, HEAD_DIM)


def visible_positions(view: LayerView, query: Tensor, keys: Tensor) -> list[list[int]]:
    """Positions that are seen, per KV head; values are made to carry their position."""
    parts = view.select(query, keys, positions_as_values(keys.shape[2]))
    assert all(n_entries(part) for part in parts)
    seen = []
    for head in range(KV_HEADS):
        taken = [_of_head(part, head) for part in parts]
        head_positions = [int(p) for _, v in taken for p in v[:, 0]]
        assert len(set(head_positions)) == len(head_positions)
        assert torch.equal(torch.cat([keys[0, 0, :0], *(k for k, _ in taken)]), keys[0, head, head_positions])
        seen.append(sorted(head_positions))
    assert view.n_visible == sum(map(len, seen)) / KV_HEADS
    return seen


def _of_head(part: Part, head: int) -> KeyValues:
    keys, values = part[head] if isinstance(part, list) else (part[0][:, head : head + 1], part[1][:, head : head + 1])
    assert keys.shape == values.shape
    return keys[0, 0], values[0, 0]
