"""The planner: what pays runs, by a table; and the table itself."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.fafo.attention import fafo_attention_on
from pipeline.fafo.decode import Decoding, generate
from pipeline.fafo.forward import Forward
from pipeline.fafo.measure import _rows_worth_measuring, measure, step_times_of
from pipeline.fafo.planner import FIRST_PAUSE, AutoPlanner, Plan
from pipeline.fafo.ranked import RankedPool
from pipeline.fafo.selectors import H2O, StreamLLM
from pipeline.fafo.settings import DecodeSettings
from pipeline.fafo.step_times import StepTimes, stored
from pipeline.fafo.tree import GuessTree
from tests.tiny import greedy, tiny_model

FREE = StepTimes(rows=(1, 128), seconds=(0.02, 0.02), per_token=(0.0, 0.0))
COSTLY = StepTimes(rows=(1, 2, 128), seconds=(0.02, 0.04, 2.56), per_token=(0.0, 0.0, 0.0))
STEP_AT_FOUR = StepTimes(rows=(1, 4, 5), seconds=(0.02, 0.021, 0.06), per_token=(0.0, 0.0, 0.0))


def chain(*chances: float) -> GuessTree:
    """A single guess with these chances."""
    tree = GuessTree(0)
    for row, chance in enumerate(chances):
        tree.add(row, row + 1, chance)
    return tree


def test_free_rows_all_run_and_rows_that_cost_a_step_each_never() -> None:
    tree = chain(0.9, 0.5, 0.2)
    assert AutoPlanner(FREE, 4, 0, 3).plan(tree, 100, 100).n_guesses == 3
    assert AutoPlanner(COSTLY, 4, 0, 3).plan(tree, 100, 100).n_guesses == 0


def test_rows_fill_what_is_cheap_and_stop_where_it_gets_dear() -> None:
    assert AutoPlanner(STEP_AT_FOUR, 8, 0, 9).plan(chain(*[0.8] * 8), 0, 0).n_guesses == 3


@given(
    chances=st.lists(st.floats(0, 1), max_size=8),
    seconds=st.lists(st.floats(0.001, 0.1), min_size=9, max_size=9),
    length=st.integers(0, 1000),
)
def test_a_plan_is_the_best_of_all(chances: list[float], seconds: list[float], length: int) -> None:
    slopes = tuple(i * 1e-6 for i in range(9))
    times = StepTimes(rows=tuple(range(1, 10)), seconds=tuple(seconds), per_token=slopes)
    planner = AutoPlanner(times, 9, 0, 1)
    tree = chain(*chances)

    def value(n_guesses: int) -> float:
        way, tokens = 1.0, 1.0
        for chance in tree.chances[1 : n_guesses + 1]:
            way *= planner.corrected(chance)
            tokens += way
        return tokens - planner.rate * (seconds[n_guesses] + slopes[n_guesses] * length)

    got = planner.plan(tree, length, 0).n_guesses
    assert value(got) == pytest.approx(max(map(value, range(len(tree)))))


def test_estimates_are_corrected_by_what_came_true_without_running_any_row() -> None:
    planner = AutoPlanner(COSTLY, 2, 0, 1)
    before = planner.corrected(0.8)
    for _ in range(60):
        planner.observe(chain(0.8), Plan(0, 0), [7], full_window=False)  # token 1 was guessed, 7 came
    assert planner.corrected(0.8) < 0.3 * before
    assert planner.corrected(0.3) == AutoPlanner(COSTLY, 2, 0, 1).corrected(0.3)
    for _ in range(300):
        planner.observe(chain(0.8), Plan(0, 0), [1], full_window=False)
    assert planner.corrected(0.8) > 0.8


def test_a_guess_at_a_place_that_the_text_did_not_reach_says_nothing() -> None:
    planner = AutoPlanner(FREE, 3, 0, 1)
    planner.observe(chain(0.9, 0.5), Plan(2, 0), [7], full_window=False)
    assert planner.corrected(0.5) == AutoPlanner(FREE, 3, 0, 1).corrected(0.5)


def columns(planner: AutoPlanner, n_steps: int, share: float) -> list[int]:
    """Columns of each step, while every step accepts one token of which the window knew `share`."""
    tree = GuessTree(0)
    tree.add(0, 1, 0.9, share)
    plans = []
    for _ in range(n_steps):
        plan = planner.plan(tree, 0, 0)
        planner.observe(tree, plan, [1, 2], full_window=plan.n_columns > 0)
        plans.append(plan.n_columns)
    return plans


def test_a_window_that_costs_more_than_it_can_bring_never_runs() -> None:
    assert set(columns(AutoPlanner(COSTLY, 4, 8, 3), 200, share=1.0)) == {0}


def test_a_window_runs_while_it_brings_something() -> None:
    cheap = StepTimes(rows=(1, 128), seconds=(0.02, 0.024), per_token=(0.0, 0.0))
    assert columns(AutoPlanner(cheap, 4, 8, 3), 200, share=0.5) == [8] * 200


def test_a_window_that_brings_nothing_is_tried_ever_more_rarely() -> None:
    cheap = StepTimes(rows=(1, 128), seconds=(0.02, 0.024), per_token=(0.0, 0.0))
    ran = columns(AutoPlanner(cheap, 4, 8, 3), 2000, share=0.0)
    starts = [i for i in range(1, 2000) if ran[i] and not ran[i - 1]]
    pauses = [sum(not n for n in ran[a:b]) for a, b in zip([0, *starts], [*starts, 2000], strict=True)][:-1]
    assert ran[0] == 8
    assert len(starts) >= 3
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]


@pytest.mark.parametrize("times", [FREE, COSTLY, STEP_AT_FOUR], ids=["free", "costly", "step"])
def test_a_run_with_a_given_table_is_repeatable_and_right(times: StepTimes) -> None:
    model = tiny_model("llama-gqa-tied")
    settings = DecodeSettings(
        100, level=4, window=6, num_guesses=5, pool="ranked", planner="auto", step_times=times, selector=StreamLLM(1, 4)
    )
    first, second = generate(model, [1, 2, 3], settings), generate(model, [1, 2, 3], settings)
    assert first.token_ids == greedy(model, [1, 2, 3], 100)
    assert first.accepted_lengths == second.accepted_lengths
    if times is FREE:
        assert max(first.accepted_lengths) > 3 and first.window_cache_tokens is not None
    if times is COSTLY:
        assert first.accepted_lengths == [1] * 100 and first.window_cache_tokens is None


def test_the_table_between_and_beyond_its_rows() -> None:
    times = StepTimes(rows=(1, 2, 4), seconds=(1.0, 2.0, 6.0), per_token=(0.0, 1.0, 1.0))
    seconds, per_token = times.interpolated(6)
    assert seconds == [0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert per_token == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "broken",
    [
        {"rows": [1]},
        {"rows": [2, 4]},
        {"rows": [4, 1]},
        {"seconds": [0.0, 1.0]},
        {"seconds": [1.0]},
        {"per_token": [-1.0, 0.0]},
        {"seconds": [float("nan"), 1.0]},
        {"more": 1},
    ],
    ids=str,
)
def test_what_is_no_table_is_refused(broken: dict[str, Any]) -> None:
    good: dict[str, Any] = {"rows": [1, 4], "seconds": [1.0, 2.0], "per_token": [0.0, 0.0]}
    StepTimes(**good)
    with pytest.raises(ValidationError):
        StepTimes(**(good | broken))


def test_a_table_is_measured_once_and_a_damaged_one_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "table.json"
    measured = []

    def measure_it() -> StepTimes:
        measured.append(1)
        return FREE

    assert stored(path, measure_it) == FREE == stored(path, measure_it)
    assert len(measured) == 1
    for damage in (b"", b"{", b'{"rows": [1, 2]}', path.read_bytes()[:-9]):
        path.write_bytes(damage)
        assert stored(path, measure_it) == FREE
        json.loads(path.read_bytes())
    assert len(measured) == 5


def test_a_table_that_can_not_be_kept_is_measured_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    assert stored(tmp_path / "file" / "table.json", lambda: FREE) == FREE
    assert "can't be kept" in caplog.text


def test_a_bump_at_few_rows_does_not_end_the_table() -> None:
    slow = {2: 3.0, 3: 9.0, 32: 2.5}
    rows = _rows_worth_measuring(lambda n_rows: slow.get(n_rows, 1.5))
    assert rows[:4] == [1, 2, 3, 4] and rows[-1] == 128
    rows = _rows_worth_measuring(lambda n_rows: 1.0 if n_rows <= 16 else 2.5)
    assert rows[-1] == 32


def test_measuring_gives_a_table_of_this_model() -> None:
    forward = Forward(tiny_model("qwen2-gqa"))
    for times in (measure(forward), measure(Forward(tiny_model("qwen2-gqa"), exact=True))):
        assert times.rows[:2] == (1, 2)
    assert step_times_of(forward) is step_times_of(Forward(tiny_model("qwen2-gqa")))


def test_a_pool_that_knows_nothing_leads_to_a_plain_step() -> None:
    planner = AutoPlanner(FREE, 5, 15, 15)
    tree = RankedPool().propose([3], 60, 10, planner.least_chance())
    assert len(tree) == 1
    assert planner.plan(tree, 0, 0).n_guesses == 0


@given(
    prices=st.lists(st.floats(0.0, 0.02), min_size=5, max_size=5),
    window=st.integers(2, 6),
    level=st.integers(3, 4),
    prompt=st.lists(st.integers(0, 3), min_size=1, max_size=12),
)
def test_a_window_that_may_never_run_never_does(
    prices: list[float], window: int, level: int, prompt: list[int]
) -> None:
    seconds = tuple(0.02 + sum(prices[:n]) for n in range(6))
    times = StepTimes(rows=(1, 2, 4, 8, 16, 40), seconds=seconds, per_token=(0.0,) * 6)
    settings = DecodeSettings(
        40, level=level, window=window, num_guesses=4, pool="ranked", planner="auto", step_times=times
    )
    model = tiny_model("llama-gqa-tied")
    may = Decoding(model, prompt, settings).planner.may_run_window(len(prompt) + 40)
    got = generate(model, prompt, settings)
    assert may or got.n_window_steps == 0


def test_whether_a_window_may_run_depends_on_what_rows_cost() -> None:
    assert AutoPlanner(FREE, 4, 5, 3).may_run_window(100)
    assert not AutoPlanner(COSTLY, 4, 5, 3).may_run_window(100)
    # A cache that is dear to read makes plain decoding slow, and the rows beside it cheap.
    dear = StepTimes(rows=(1, 2, 128), seconds=(0.02, 0.04, 2.56), per_token=(1e-3, 1e-3, 1e-3))
    assert AutoPlanner(dear, 4, 5, 3).may_run_window(10_000)


def test_a_prompt_is_not_shown_to_a_selector_that_has_nothing_to_do() -> None:
    model = tiny_model("llama-gqa-tied")
    for times in (FREE, COSTLY):
        auto = DecodeSettings(
            1, level=4, window=5, num_guesses=3, planner="auto", step_times=times, selector=H2O(budget=2)
        )
        decoding = Decoding(model, [1, 2, 3, 4], auto)
        with torch.inference_mode(), fafo_attention_on(model):
            decoding.prefill()
        assert (decoding.views[0].memory is not None) == (times is FREE)
