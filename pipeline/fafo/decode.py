"""The decoding loop. Plain, lookahead and FAFO decoding are settings of it."""

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.errors import UserError
from pipeline.fafo.attention import fafo_attention_on
from pipeline.fafo.cache import FullCache, layer_devices
from pipeline.fafo.drafter import Drafting
from pipeline.fafo.exact import TILE
from pipeline.fafo.forward import Forward, greedy_tokens, top_tokens
from pipeline.fafo.layout import Layout, lay_out
from pipeline.fafo.marks import MODEL, WINDOW
from pipeline.fafo.measure import step_times_of
from pipeline.fafo.memory import held_bytes
from pipeline.fafo.planner import AutoPlanner, FixedPlanner, Planner
from pipeline.fafo.pool import NgramPool, Pool
from pipeline.fafo.ranked import RankedPool
from pipeline.fafo.selectors import LayerView
from pipeline.fafo.selectors.base import KeyValues
from pipeline.fafo.settings import DecodeSettings, Generation, StopReason
from pipeline.fafo.sources import common_prefix, tell_apart
from pipeline.fafo.support import check_model, check_prompt, context_limit
from pipeline.fafo.verify import accept
from pipeline.fafo.window import JacobiWindow

TokenChoice = Callable[[list[int], Tensor], int]  # text so far, logits [vocabulary] -> the next token
StopRule = Callable[[list[int]], bool]  # text so far -> is this the end?


@torch.inference_mode()
def generate(
    model: PreTrainedModel, prompt_ids: list[int], settings: DecodeSettings, choose: TokenChoice | None = None
) -> Generation:
    """Decode one prompt. The tokens are those of plain decoding, whatever the settings.

    Args:
        choose: how a token is chosen, greedily by default; see `ProcessedChoice`.

    Raises:
        UserError: the model is of a kind that can't be decoded losslessly, or the prompt is empty, has ids outside
            the vocabulary, or leaves no room for a new token.
    """
    return Decoding(model, prompt_ids, settings, choose).run()


class Decoding:
    """The state between the steps of one generation: all text but its newest token, the root, is in the cache.

    Its methods are to be called inside `torch.inference_mode()`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompt_ids: list[int],
        settings: DecodeSettings,
        choose: TokenChoice | None = None,
        should_stop: StopRule | None = None,
        earlier: "Decoding | None" = None,
    ) -> None:
        """Prepare; arguments and errors are those of `generate`.

        Args:
            should_stop: asked after each new token.
            earlier: a finished decoding with the same model, such as that of the turn before: what both texts begin
                with is taken over from its cache.
        """
        check_model(model.config)
        check_prompt(prompt_ids, model.config)
        settings.selector.check(model.config)
        self.model = model
        self.settings = settings
        self.forward = Forward(model, settings.exact, settings.compile)
        self.choose = choose
        self.should_stop = should_stop
        self.earlier = earlier
        self.n_prompt = len(prompt_ids)
        self.n_reused = 0
        self.text = list(prompt_ids)
        self.limit, self.limit_reason = _length_limit(model, len(prompt_ids), settings.n_new_tokens)
        self.cache = FullCache.for_model(model, capacity=self.limit + _max_rows(settings))
        n_layers = model.config.num_hidden_layers
        self.views = [LayerView(settings.selector, layer, n_layers, self.text) for layer in range(n_layers)]
        self.pool = self._pool()
        self.planner = _planner(self.forward, settings)
        self.window = JacobiWindow(settings.level, settings.window, prompt_ids, settings.seed)
        self.accepted_lengths: list[int] = []
        self.verified_rows: list[int] = []
        self.window_rows: list[int] = []
        self.draft_passes: list[int] = []
        self.marks: list[str] = []  # where each new token came from, as far as the steps know; see `sources.py`
        self.stop_reason: StopReason | None = None
        self.most_logit_rows = 1
        self.cache_tokens = 0  # sums over the steps, as are the next
        self.seen_tokens = 0.0
        self.draft_cache_tokens = 0
        self.draft_seen_tokens = 0.0
        self.n_window_steps = 0
        self.cache_tokens_beside_window = 0
        self.window_cache_tokens = 0.0

    def run(self, on_step: Callable[[list[int]], None] | None = None) -> Generation:
        """Decode to the end; `on_step` gets the new tokens of each step."""
        with fafo_attention_on(self.model):
            started = now(self.model)
            self.prefill()
            prefilled = now(self.model)
            while self.stop_reason is None:
                self.step()
                if on_step is not None:
                    on_step(self.text[-self.accepted_lengths[-1] :])
            ended = now(self.model)
        n_steps = len(self.accepted_lengths)
        n_window_steps = self.n_window_steps
        return Generation(
            token_ids=self.text[self.n_prompt :],
            n_prompt_tokens=self.n_prompt,
            accepted_lengths=self.accepted_lengths,
            verified_rows=self.verified_rows,
            window_rows=self.window_rows,
            draft_passes=self.draft_passes,
            draft_cache_share=self.draft_seen_tokens / self.draft_cache_tokens if self.draft_cache_tokens else None,
            prefill_seconds=prefilled - started,
            decode_seconds=ended - prefilled,
            stop_reason=self.stop_reason,
            cache_tokens=self.cache_tokens / n_steps,
            seen_cache_tokens=self.seen_tokens / n_steps if self.settings.lossy else None,
            kv_bytes=self.cache.bytes_per_token * (self.seen_tokens + self.draft_seen_tokens) / n_steps,
            n_window_steps=n_window_steps,
            cache_tokens_beside_window=self.cache_tokens_beside_window / n_window_steps if n_window_steps else None,
            window_cache_tokens=self.window_cache_tokens / n_window_steps if n_window_steps else None,
            n_reused_tokens=self.n_reused,
            token_sources=tell_apart(self.text, self.n_prompt, self.marks, self._known_text()),
        )

    def continue_from(self, layers: Iterable[KeyValues]) -> None:
        """Take over entries of the prompt's first tokens, for each layer keys and values, before `prefill`."""
        n = 0
        for layer, (keys, values) in enumerate(layers):
            n = min(keys.shape[2], len(self.text) - 1)
            self.cache.append(layer, keys[:, :, :n], values[:, :, :n])
        self.cache.commit(list(range(n)))

    def prefill(self) -> None:
        """Fill the cache with all of the prompt but its last token, the first root."""
        if self.earlier is not None:
            self._continue_after(self.earlier)
            self.earlier = None  # frees its cache
        self.n_reused = self.cache.length
        views = self.views if self._may_select() else []
        if views and self.n_reused and self.settings.selector.whole_prompt:
            raise UserError("past_key_values: the selector must see the whole prompt run; leave earlier entries out")
        if self.settings.pool_from_prompt:
            self.pool.add_text(self.text)
        rest = self.text[self.cache.length : -1]
        if not rest:
            return
        with self.settings.selector.reading(self.model, views) if views else nullcontext():
            self.forward.text(rest, self.cache, views)
        for view in views:
            view.prompt_ends(self.cache.length, see_all=self.settings.lossy)

    def step(self) -> None:
        """One forward pass: verify guesses, improve the window, accept."""
        n_before, root = len(self.text), self.text[-1]
        proposal = self.pool.propose(
            self.text,
            n_rows=self.settings.n_guess_rows,
            max_depth=self.limit - n_before - 1,
            min_chance=self.planner.least_chance(),
        )
        plan = self.planner.plan(proposal, self.cache.length, n_seen=round(self._n_visible()))
        if plan.n_columns and not self.window.rows:
            for view in self.views:
                view.forget()
        self.window.resize(plan.n_columns, root)
        tree = proposal.cut(plan.n_guesses + 1)
        layout = lay_out(tree, self.window, n_before - 1, context_limit(self.model.config))
        logits = self.forward.step(layout, self.cache, self.views, self.settings.lossy)
        predicted = greedy_tokens(logits)
        self._count(layout)
        rows = accept(tree, lambda row: self._take(predicted[row], logits[row]))
        self.cache.commit(rows)
        self.marks += [WINDOW if tree.window_shares[row] > 0.5 else self.pool.mark for row in rows[1:]] + [MODEL]
        new_tokens = self.text[n_before:]
        self.accepted_lengths.append(len(new_tokens))
        self.planner.observe(proposal, plan, new_tokens, self.window.is_full)

        if self.pool.n_successors:
            top, chances = top_tokens(logits[: len(tree)], self.pool.n_successors)
            for token, successors in zip(tree.tokens, map(zip, top, chances), strict=True):
                self.pool.add_successors(token, list(successors))
        new_window_tokens = predicted[layout.n_verify :]
        for key, guess in self.window.ngrams(new_window_tokens):
            self.pool.add(key, guess)
        if self.settings.pool_from_output:
            self.pool.add_text(self.text, start=n_before)
        self.window.advance(len(new_tokens) - 1, self.text[-1], new_window_tokens)

    def extra_bytes(self) -> int:
        """Most memory that the method takes beside the model and plain decoding's cache, after `run`.

        It is made up of the cache's room for rows, what the pool has learned, what selectors keep and copy, and the
        logits of the largest step. What layers need while they compute is not in it.
        """
        room = self.cache.bytes_per_token * (_max_rows(self.settings) - 1)
        kept = held_bytes([view.held for view in self.views], besides=self.cache.tensors)
        logits = (self.most_logit_rows - 1) * self.model.config.vocab_size * self.model.dtype.itemsize
        return room + self.pool.n_bytes + kept + logits

    def _take(self, predicted: int, logits: Tensor) -> int | None:
        """Add the next token to the text; return it, or None if decoding ends with it."""
        token = predicted if self.choose is None else self.choose(self.text, logits)
        self.text.append(token)
        if token in self.settings.eos_token_ids:
            self.stop_reason = "eos"
        elif len(self.text) == self.limit:
            self.stop_reason = self.limit_reason
        elif self.should_stop is not None and self.should_stop(self.text):
            self.stop_reason = "criteria"
        return token if self.stop_reason is None else None

    def _may_select(self) -> bool:
        """Whether the selector may be asked at all: if not, nothing need be shown to it."""
        settings = self.settings
        has_window = settings.has_window_rows and self.planner.may_run_window(self.limit)
        return settings.lossy or has_window or (settings.drafter is not None and settings.drafter.uses_views)

    def _continue_after(self, earlier: "Decoding") -> None:
        must_read_all = self.settings.lossy or (self.settings.selector.whole_prompt and self._may_select())
        if must_read_all or earlier.settings.lossy:
            return
        n = common_prefix(earlier.text[: earlier.cache.length], self.text)
        if n:
            layers = map(earlier.cache.entries, range(len(self.views)))
            self.continue_from((keys[:, :, :n], values[:, :, :n]) for keys, values in layers)

    def _known_text(self) -> range:
        """Indices of the tokens that the pool was told of; those of an n-gram that ends in the output may be before."""
        start = 0 if self.settings.pool_from_prompt else self.n_prompt - self.pool.n_before
        return range(start, len(self.text) if self.settings.pool_from_output else self.n_prompt)

    def _pool(self) -> Pool:
        settings = self.settings
        if settings.drafter is not None:
            return settings.drafter.pool(Drafting(self.model, self.cache, self.views, settings.compile))
        if settings.pool == "ranked" and settings.n_guess_rows:
            return RankedPool()
        return NgramPool(settings.level, settings.num_guesses)

    def _count(self, layout: Layout) -> None:
        """Note what this step ran and saw."""
        self.verified_rows.append(layout.n_verify)
        self.window_rows.append(len(layout.tokens) - layout.n_verify)
        self.most_logit_rows = max(self.most_logit_rows, len(layout.logit_rows))
        self.draft_passes.append(self.pool.n_passes)
        self.draft_cache_tokens += self.pool.n_passes * self.cache.length
        self.draft_seen_tokens += self.pool.seen_tokens
        self.cache_tokens += self.cache.length
        self.seen_tokens += self._n_visible() if self.settings.lossy else self.cache.length
        if layout.n_verify < len(layout.tokens):
            self.n_window_steps += 1
            self.cache_tokens_beside_window += self.cache.length
            self.window_cache_tokens += self._n_visible()
            self.seen_tokens += self._n_visible()

    def _n_visible(self) -> float:
        """Cache tokens that the selector let be seen in the latest step, as a mean over the layers."""
        return sum(view.n_visible for view in self.views) / len(self.views)


def _planner(forward: Forward, settings: DecodeSettings) -> Planner:
    if settings.planner == "fixed":
        return FixedPlanner(settings.window)
    times = settings.step_times or step_times_of(forward)
    if settings.drafter is not None:
        return AutoPlanner(times, 2, 0, settings.n_guess_rows)
    return AutoPlanner(times, settings.level, settings.window, settings.num_guesses)


def _max_rows(settings: DecodeSettings) -> int:
    """Most rows of a step."""
    n_columns = settings.window + settings.level - 2 if settings.window else 0
    n_rows = 1 + settings.n_guess_rows + (settings.level - 1) * n_columns
    return n_rows + 2 * TILE if settings.exact else n_rows


def _length_limit(model: PreTrainedModel, n_prompt: int, n_new: int) -> tuple[int, StopReason]:
    """Most tokens of prompt and output together, and what to call it when that ends decoding."""
    limit = context_limit(model.config)
    if limit is not None and n_prompt + n_new > limit:
        return limit, "context_limit"
    return n_prompt + n_new, "length"


def now(model: PreTrainedModel) -> float:
    """Seconds on a clock, after the model's devices have done what they were given."""
    for device in {model.device, *layer_devices(model)}:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return time.perf_counter()
