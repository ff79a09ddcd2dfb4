"""Measuring how long steps take, for the planner."""

import hashlib
import logging
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from weakref import WeakKeyDictionary

import numpy as np
import torch
import transformers
from platformdirs import user_cache_path
from transformers import PreTrainedModel

from pipeline.device_name import device_name
from pipeline.fafo.attention import fafo_attention_on
from pipeline.fafo.cache import FullCache, layer_devices
from pipeline.fafo.forward import Forward, greedy_tokens
from pipeline.fafo.layout import lay_out
from pipeline.fafo.selectors import Full, LayerView
from pipeline.fafo.step_times import StepTimes, stored
from pipeline.fafo.support import context_limit
from pipeline.fafo.tree import GuessTree
from pipeline.fafo.window import JacobiWindow

log = logging.getLogger(__name__)

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 48, 64, 96, 128)
FEW = 16  # up to here cost need not grow with rows: some kernels are slowest at two or three
ENOUGH = 2.0  # plain steps: beyond the first larger row count that takes as long, cost is extrapolated
SHORT, LONG = 256, 2048  # cached tokens
REPEATS = 3
_FORMAT = 3  # of the table on disk, and of how it is measured
_SHAPE = (
    *("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "vocab_size"),
)
_KNOWN: WeakKeyDictionary[PreTrainedModel, dict[str, StepTimes]] = WeakKeyDictionary()


def step_times_of(forward: Forward) -> StepTimes:
    """How long steps of a model take on its device; measured once, in seconds, then kept in memory and on disk."""
    model = forward.model
    facts = (
        _FORMAT,
        transformers.__version__,
        [str(device) for device in layer_devices(model)],
        [str(getattr(model.config, name, None)) for name in _SHAPE],
        device_name(model.device),
        str(model.dtype),
        torch.get_num_threads(),
        torch.__version__,
        forward.compiled is not None,
        forward.exact,
    )
    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
    known = _KNOWN.setdefault(model, {})
    if key not in known:
        path = user_cache_path("fafo") / "step_times" / f"{key}.json"
        with fafo_attention_on(model):  # threads take turns here before processes do at the file
            known[key] = stored(path, lambda: measure(forward))
    return known[key]


@torch.inference_mode()
def measure(forward: Forward) -> StepTimes:
    """Measure the table: medians of interleaved repeats, warm-up discarded.

    All rows are verified and have logits, so window rows, most of which need none, count as a little too dear.
    """
    model = forward.model
    n_layers, n_positions = model.config.num_hidden_layers, context_limit(model.config)
    cache = FullCache.for_model(model, capacity=LONG + 2 * ROWS[-1])
    seconds = partial(step_seconds, forward, cache)
    started = time.perf_counter()
    with fafo_attention_on(model):
        n_short = min(SHORT, n_positions - 1) if n_positions else SHORT
        forward.text([i % model.config.vocab_size for i in range(n_short)], cache)
        rows = _rows_worth_measuring(seconds)
        short = _medians(seconds, rows)
        _lengthen(cache, LONG // n_short, n_layers)
        n_more = cache.length - n_short
        some = sorted({rows[0], rows[len(rows) // 2], rows[-1]})
        long = _medians(seconds, some)
    slopes = [max(long[n] - short[n], 0.0) / n_more for n in some]
    per_token = np.interp(rows, some, slopes).tolist()
    floor = 0.5 * min(short.values())  # noise must not make a step free
    log.info("planner: measured steps of 1 to %d rows in %.1f s", rows[-1], time.perf_counter() - started)
    return StepTimes(
        rows=tuple(rows),
        seconds=tuple(max(short[n] - n_short * slope, floor) for n, slope in zip(rows, per_token, strict=True)),
        per_token=tuple(per_token),
    )


def step_seconds(forward: Forward, cache: FullCache, n_rows: int) -> float:
    """Seconds of one step with guess rows only, reading its tokens included. Commits nothing."""
    views = [LayerView(Full()) for _ in layer_devices(forward.model)]  # for what the exact mode pads a step with
    started = time.perf_counter()
    tree = GuessTree(0)
    for _ in range(n_rows - 1):
        tree.add(0, 0)
    layout = lay_out(tree, JacobiWindow(2, 0, [0], 0), cache.length, context_limit(forward.model.config))
    greedy_tokens(forward.step(layout, cache, views))
    return time.perf_counter() - started


def _rows_worth_measuring(seconds: Callable[[int], float]) -> list[int]:
    """Row counts up to the first beyond `FEW` that takes `ENOUGH` plain steps; the calls warm up."""
    plain = min(seconds(1) for _ in range(2))
    rows = []
    for n_rows in ROWS:
        rows.append(n_rows)
        if seconds(n_rows) > ENOUGH * plain and n_rows > FEW:
            break
    return rows


def _medians(seconds: Callable[[int], float], rows: list[int]) -> dict[int, float]:
    sweeps = [[seconds(n_rows) for n_rows in rows] for _ in range(REPEATS)]
    return {n_rows: median(times) for n_rows, times in zip(rows, zip(*sweeps, strict=True), strict=True)}


def _lengthen(cache: FullCache, times: int, n_layers: int) -> None:
    """Repeat the committed entries so that there are `times` as many."""
    length = cache.length
    for layer in range(n_layers):
        keys, values = cache.entries(layer)
        cache.append(layer, *(t.repeat(1, 1, times - 1, 1) for t in (keys, values)))
    cache.commit(list(range(length * (times - 1))))
