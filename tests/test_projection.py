"""What a projection is made of: shapes, rooflines, curves and traces, each against numbers counted by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pipeline.common.records import PromptResult, Turn
from pipeline.errors import UserError
from pipeline.fafo.step_times import StepTimes
from pipeline.projection.curve import Curve
from pipeline.projection.devices import DEVICES, DTYPES, Device, with_free_launches
from pipeline.projection.fit import CONTEXTS, fit
from pipeline.projection.machine import weights
from pipeline.projection.passes import Passes, numbers
from pipeline.projection.roofline import Roofline
from pipeline.projection.shapes import SHAPES, Shape, recorded_shape
from pipeline.projection.traces import Skipped, trace
from tests.figure_runs import result
from tests.tiny import CONFIGS, tiny_model

TINY = Shape("tiny", n_layers=2, hidden=8, intermediate=16, n_heads=2, n_kv_heads=1, head_dim=4, vocabulary=32)
ENDLESS = 1e300
TIMES = StepTimes((1, 4, 16), (1.0, 2.0, 3.0), (0.1, 0.2, 0.4))


def device(**changes: Any) -> Device:
    """Of which each limit is to be named: peak and bandwidth are endless, launches free, all of both is reached."""
    limits: dict[str, Any] = {"peak": dict.fromkeys(DTYPES, ENDLESS), "bandwidth": ENDLESS, "launch_seconds": 0.0}
    limits |= {"memory": ENDLESS, "bandwidth_efficiency": 1.0, "peak_efficiency": 1.0}
    return Device("made up", **limits | changes)


def passes(rows: int, context: float, window_rows: int = 0, window_context: float = 0, **more: Any) -> Passes:
    return Passes(numbers([rows]), numbers([context]), numbers([window_rows]), numbers([window_context]), **more)


def seconds(of: Device, one: Passes, shape: Shape = TINY, dtype: str = "float16") -> float:
    return float(Roofline(of, shape, dtype).seconds(one)[0])


STEP = passes(3, 10, 2, 4)
# By hand, of two layers with 192 + 384 weights each and a head of 256: 1408 weights, and for a row 112 + 144 + 40
# numbers into and out of products; keys and values of a token are 16 numbers.
NUMBERS = (1408 + 5 * (112 + 144 + 40)) + 10 * 16 + 4 * 16 + 2 * 5 * 16
FLOPS = 2 * 1408 * 5 + 64 * (3 * 10 + 2 * 4 + 15)
LAUNCHES = 2 * (11 + 5) + 3


def test_a_shape_is_counted_right() -> None:
    assert (TINY.attention_weights, TINY.mlp_weights, TINY.head_weights) == (384, 768, 256)
    assert (TINY.attention_activations, TINY.mlp_activations, TINY.head_activations) == (112, 144, 40)
    assert (TINY.kv_per_token, TINY.attention_flops) == (16, 64)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_shape_has_the_weights_of_the_model(name: str) -> None:
    model = tiny_model(name)
    shape = Shape.of(name, model.config)
    linear = [module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear)]
    assert weights(shape, STEP) == sum(linear)


def test_the_known_shape_is_the_published_model() -> None:
    shape = Shape.of("llama-3.1-8b", SHAPES["llama-3.1-8b"])
    assert weights(shape, STEP) == pytest.approx(7.5e9, rel=0.01)  # 8.03 billion, less 0.53 of the embedding
    assert 2 * shape.kv_per_token == 128 * 1024  # bytes in half precision


def test_time_is_bytes_by_bandwidth_where_only_that_is_limited() -> None:
    assert seconds(device(bandwidth=1.0), STEP) == 2 * NUMBERS
    assert seconds(device(bandwidth=1.0), STEP, dtype="float32") == 4 * NUMBERS
    assert seconds(device(bandwidth=1.0, bandwidth_efficiency=0.5), STEP) == 4 * NUMBERS


def test_time_is_operations_by_peak_where_only_that_is_limited() -> None:
    assert seconds(device(peak={"float16": 1.0}), STEP) == FLOPS
    assert seconds(device(peak={"float16": 1.0}, peak_efficiency=0.25), STEP) == 4 * FLOPS


def test_time_is_launches_where_only_these_cost() -> None:
    assert seconds(device(launch_seconds=1.0), STEP) == LAUNCHES
    assert seconds(device(launch_seconds=1.0), passes(3, 10)) == LAUNCHES - 2  # one a layer is the window's
    assert seconds(with_free_launches(device(launch_seconds=1.0)), STEP) == pytest.approx(0)


def test_each_part_takes_as_long_as_the_nearer_limit() -> None:
    # With one row and as many operations as bytes a second, products are bound by their bytes; attention by operations.
    found = seconds(device(bandwidth=1.0, peak={"float16": 1.0}), passes(1, 10))
    assert found == 2 * (1408 + 112 + 144 + 40) + 64 * 10 + max(2 * 2 * 16, 64)


def test_skipped_layers_and_the_head_cost_nothing() -> None:
    kept = passes(1, 0, attention_share=0.5, mlp_share=0.25, has_head=False)
    n_numbers = 0.5 * (384 + 112) + 0.25 * (768 + 144) + 0.5 * 2 * 16
    assert seconds(device(bandwidth=1.0), kept) == 2 * n_numbers
    assert seconds(device(launch_seconds=1.0), kept) == 2 * (0.5 * 10 + 0.25 * 5)


amounts = st.floats(1e-3, 1e15)
counts = st.integers(0, 10_000)


@given(
    st.integers(1, 500), counts, counts, counts, st.sampled_from(["rows", "context", "window_rows", "window_context"]),
    st.integers(1, 1000), amounts, amounts, st.floats(0, 1), st.sampled_from(DTYPES),
)  # fmt: skip
def test_more_is_never_faster(
    rows: int, context: int, window_rows: int, window_context: int, which: str, more: int, peak: float,
    bandwidth: float, launch_seconds: float, dtype: str,
) -> None:  # fmt: skip
    drawn = device(peak=dict.fromkeys(DTYPES, peak), bandwidth=bandwidth, launch_seconds=launch_seconds)
    less = passes(rows, context, window_rows, window_context)
    greater = replace(less, **{which: getattr(less, which) + more})
    assert seconds(drawn, greater, dtype=dtype) >= seconds(drawn, less, dtype=dtype)


@given(st.integers(1, 500), counts, st.sampled_from(list(DEVICES)), st.sampled_from(DTYPES), st.floats(1, 10))
def test_a_faster_device_is_never_slower(rows: int, context: int, name: str, dtype: str, times: float) -> None:
    slow = DEVICES[name]
    for faster in (
        replace(slow, bandwidth=times * slow.bandwidth),
        replace(slow, peak={key: times * value for key, value in slow.peak.items()}),
        replace(slow, launch_seconds=slow.launch_seconds / times),
    ):
        assert seconds(faster, passes(rows, context), dtype=dtype) <= seconds(slow, passes(rows, context), dtype=dtype)


def test_a_device_that_cannot_hold_the_model_is_refused() -> None:
    with pytest.raises(UserError, match=r"made up: tiny in float32 has 0\.0 GB of weights"):
        Roofline(device(memory=4 * 1408 - 1), TINY, "float32")
    Roofline(device(memory=4 * 1408), TINY, "float32")
    with pytest.raises(UserError, match="made up: no peak for float32; described are float16"):
        Roofline(device(peak={"float16": 1.0}), TINY, "float32")


def test_a_model_that_is_not_here_has_no_shape() -> None:
    with pytest.raises(UserError, match=r"^nobody/nothing: .*; name one with --shape$"):
        recorded_shape("nobody/nothing")


def test_a_curve_gives_its_own_points() -> None:
    curve = Curve(TIMES, TINY)
    for n, of_rows, per_token in zip(TIMES.rows, TIMES.seconds, TIMES.per_token, strict=True):
        for context in (0, 10):
            assert curve.seconds(passes(n, context))[0] == of_rows + context * per_token


def test_a_curve_prices_window_rows_by_what_they_see() -> None:
    assert Curve(TIMES, TINY).seconds(STEP)[0] == pytest.approx(
        2 + 1 / 12 + 10 * (0.1 + 0.1 * 2 / 3) + 4 * (0.1 + 0.1 / 3)
    )


def test_a_curve_goes_on_beyond_its_end() -> None:
    # 10 rows more than measured: the last slopes go on, and each row sees half of these too.
    found = Curve(TIMES, TINY).seconds(passes(26, 0))[0]
    assert found == pytest.approx(3 + 10 / 12 + (0.4 + 10 * 0.2 / 12) * 5)


def test_a_curve_prices_a_part_of_the_model_by_its_weights() -> None:
    found = Curve(TIMES, TINY).seconds(passes(1, 0, attention_share=0.0, has_head=False))[0]
    assert found == pytest.approx(768 / 1408)
    assert Curve(TIMES, TINY).seconds(Passes(numbers([]), numbers([]), has_head=False)).size == 0


@given(st.floats(1e8, 1e12), st.floats(1e8, 1e11), st.floats(1e-7, 1e-5))
def test_a_fit_finds_the_roofline_that_a_curve_is_of(peak: float, bandwidth: float, launch_seconds: float) -> None:
    true = Roofline(device(peak={"float32": peak}, bandwidth=bandwidth, launch_seconds=launch_seconds), TINY, "float32")
    rows = (1, 2, 4, 8, 16, 32, 64, 128)
    of_rows = [float(true.seconds(passes(n, 0))[0]) for n in rows]
    longer = [float(true.seconds(passes(n, CONTEXTS[1]))[0]) for n in rows]
    per_token = [(more - less) / CONTEXTS[1] for less, more in zip(of_rows, longer, strict=True)]
    found = fit(StepTimes(rows, tuple(of_rows), tuple(per_token)), TINY, "float32")
    assert found.rows == [1, 16, 64]
    assert len(found.errors) == 5 * len(CONTEXTS)
    assert np.median(np.abs(found.errors)) < 0.02


def test_a_short_curve_is_fitted_where_it_ends() -> None:
    found = fit(TIMES, TINY, "float32")
    assert found.rows == [1, 16]
    assert len(found.errors) == len(CONTEXTS)
    assert fit(StepTimes((1, 2), (1.0, 1.5), (0.0, 0.0)), TINY, "float32").errors == []


def line(accepted: list[int], **more: Any) -> PromptResult:
    n_steps = len(accepted)
    rows = {"verified_rows": [1] * n_steps, "window_rows": [0] * n_steps, "draft_passes": [0] * n_steps}
    return result("a", 11, 1.0, accepted, **{"window_cache_tokens": None} | rows | more)


def test_a_step_sees_what_was_accepted_before_it() -> None:
    found = trace(line([1, 3, 2]))
    assert found.n_new_tokens == 6
    assert found.steps.context.tolist() == [10, 11, 14]
    assert (found.prefills.rows.tolist(), found.prefills.context.tolist()) == ([10], [0])
    assert not found.prefills.has_head
    assert found.drafts.rows.size == 0


def test_each_turn_starts_from_its_own_prompt() -> None:
    turns = [
        Turn(output_text="", n_prompt_tokens=n_prompt, n_reused_tokens=n_reused, n_new_tokens=3, stop_reason="length")
        for n_prompt, n_reused in ((5, 0), (12, 7))
    ]
    found = trace(line([1, 2, 1, 1, 1], turns=turns))
    assert found.steps.context.tolist() == [4, 5, 11, 12, 13]
    assert (found.prefills.rows.tolist(), found.prefills.context.tolist()) == ([4, 4], [0, 7])


def test_a_prompt_that_is_all_there_is_not_read() -> None:
    one = line([1]).model_copy(update={"n_prompt_tokens": 1})
    assert trace(one).prefills.rows.size == 0
    assert Roofline(DEVICES["a100"], TINY, "float16").prefill_seconds(trace(one)) == 0


def test_windows_and_drafts_see_their_share() -> None:
    one = line(
        [2, 1], verified_rows=[4, 5], window_rows=[6, 7], draft_passes=[2, 1], draft_cache_share=0.5,
        window_cache_tokens=11.0, cache_tokens_beside_window=20.0,
    )  # fmt: skip
    found = trace(one, Skipped(0.5, 0.75))
    assert (found.steps.rows.tolist(), found.steps.window_rows.tolist()) == ([4, 5], [6, 7])
    assert found.steps.window_context.tolist() == [10, 11]  # never more than there is
    assert found.drafts.context.tolist() == [5, 5, 6]
    assert (found.drafts.attention_share, found.drafts.mlp_share) == (0.5, 0.75)


def test_lossy_tokens_see_what_was_selected() -> None:
    assert trace(line([1, 1, 1], seen_cache_tokens=10.5)).steps.context.tolist() == [10, 10.5, 10.5]


def test_an_older_record_is_refused() -> None:
    with pytest.raises(UserError, match="prompt a: an older record without verified_rows, window_rows, draft_passes"):
        trace(result("a", 11, 1.0, [1], window_cache_tokens=None))
