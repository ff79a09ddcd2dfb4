"""Running the model: a stretch of text into the cache, or a step's rows to logits."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.fafo.attention import Step, running
from pipeline.fafo.cache import FullCache
from pipeline.fafo.compiled import MOST_ROWS, compiled
from pipeline.fafo.exact import TILE, FixedShapeLinear
from pipeline.fafo.layout import Layout
from pipeline.fafo.selectors import LayerView

_BLOCK = 128  # columns of the logits


class Forward:
    """Forward passes of one model, to be called while `fafo_attention_on` it.

    exact: see `exact.py`. compile: see `compiled.py`.
    """

    def __init__(self, model: PreTrainedModel, exact: bool = False, compile: bool = False) -> None:
        self.model = model
        self.device = model.device
        self.body = model.base_model
        self.head = model.get_output_embeddings()
        self.exact = exact
        self.compiled = compiled(model) if compile else None

    def text(self, tokens: list[int], cache: FullCache, views: Sequence[LayerView] = ()) -> None:
        """Append a stretch of text to the cache and commit it; `views` (one a layer, or none) get to see it."""
        ids = torch.tensor([tokens], device=self.device)
        positions = torch.arange(cache.length, cache.length + len(tokens), device=self.device)[None]
        with running(Step(cache, views=list(views))):
            self.body(input_ids=ids, position_ids=positions, use_cache=False)
        cache.commit(list(range(len(tokens))))

    def step(self, layout: Layout, cache: FullCache, views: list[LayerView], lossy: bool = False) -> Tensor:
        """Run a step's rows; return the logits of `layout.logit_rows`, [rows, vocabulary]. Commits nothing.

        lossy: see `Step`.
        """
        n_logits = len(layout.logit_rows)
        fixed_shapes: AbstractContextManager[object] = nullcontext()
        if self.exact:
            layout = layout.padded(TILE)
            fixed_shapes = FixedShapeLinear(len(layout.tokens), -(-layout.n_verify // TILE) * TILE)
        n_rows = len(layout.tokens)
        rows = torch.from_numpy(np.array([*layout.tokens, *layout.positions, *layout.logit_rows]))
        rows = rows.to(self.device)  # in one copy
        ids, positions, logit_rows = rows.split([n_rows, n_rows, len(layout.logit_rows)])
        ids, positions = ids[None], positions[None]
        with running(Step(cache, layout, views, self.exact, lossy)), fixed_shapes:
            if self.compiled is not None and n_rows <= MOST_ROWS:
                return self.compiled(ids, positions, logit_rows)
            hidden = self.body(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state
            logits = self.head(hidden.index_select(1, logit_rows.to(hidden.device)))
        return logits[0, :n_logits]


def greedy_tokens(logits: Tensor) -> list[int]:
    """The most likely token of each row of `logits` [rows, vocabulary]; the first of equals, as in `argmax`."""
    return logits.max(dim=-1).indices.tolist()  # 2.5 times faster than argmax on CPUs


def top_tokens(logits: Tensor, n: int) -> tuple[list[list[int]], list[list[float]]]:
    """The `n` likeliest tokens of each row of `logits` [rows, vocabulary], and their probabilities among themselves."""
    n_rows, vocabulary = logits.shape
    if vocabulary % _BLOCK or vocabulary < n * _BLOCK:
        top = logits.topk(min(n, vocabulary))
        tokens = top.indices
    else:  # they lie in the n blocks with the largest maxima: a fraction of the time of topk over all
        blocks = logits.view(n_rows, -1, _BLOCK)
        best = blocks.amax(dim=-1).topk(n).indices  # [rows, n]
        top = blocks.gather(1, best.unsqueeze(-1).expand(-1, -1, _BLOCK)).flatten(1).topk(n)
        tokens = best.gather(1, top.indices // _BLOCK) * _BLOCK + top.indices % _BLOCK
    return tokens.tolist(), top.values.float().softmax(dim=-1).tolist()
