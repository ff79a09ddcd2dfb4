"""The Jacobi window against positions written out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.fafo.window import JacobiWindow

PROMPT = [900, 901, 902]


def label_by_position(window: JacobiWindow, root_position: int) -> None:
    """Replace each token by 1000 * row + its position, so that moves can be followed."""
    for r, row in enumerate(window.rows):
        row[:] = [1000 * r + root_position + i + r for i in range(len(row))]


@pytest.mark.parametrize("level", [2, 3, 4, 6])
@pytest.mark.parametrize("width", [1, 2, 7])
def test_fills_one_row_a_step_to_its_final_shape(level: int, width: int) -> None:
    window = JacobiWindow(level, width, PROMPT, seed=0)
    assert [len(row) for row in window.rows] == [width + level - 2]
    for step in range(level - 2):
        assert not window.is_full
        assert window.ngrams([0] * window.width) == []
        window.advance(0, root=5, new=list(range(window.width)))
        assert [len(row) for row in window.rows] == [width + level - 3 - step] * (step + 2)
        assert window.rows[0][0] == 5
    assert window.is_full
    assert [len(row) for row in window.rows] == [width] * (level - 1)


@given(level=st.integers(2, 6), width=st.integers(1, 8), n_accepted=st.integers(0, 6), n_fill=st.integers(0, 4))
def test_each_row_keeps_its_positions_when_the_root_advances(
    level: int, width: int, n_accepted: int, n_fill: int
) -> None:
    window = JacobiWindow(level, width, PROMPT, seed=0)
    for _ in range(min(n_fill, level - 2)):
        window.advance(0, root=5, new=[0] * window.width)
    was_full, n_rows = window.is_full, len(window.rows)
    label_by_position(window, root_position=100)
    new = [1000 * n_rows + 100 + i + n_rows for i in range(window.width)]

    window.advance(n_accepted, root=5, new=new)

    root_position = 100 + n_accepted + 1
    assert window.rows[0][0] == 5
    for r, row in enumerate(window.rows):
        for i, token in enumerate(row):
            if (r, i) != (0, 0) and token not in PROMPT:
                assert token % 1000 == root_position + i + r  # a token never changes its position
                assert token // 1000 == (r + 1 if was_full else r)  # a full window's rows move up by one
    kept = sum(token not in PROMPT for row in window.rows for token in row)
    assert kept >= len(window.rows) * (window.width - n_accepted - (not was_full)) - len(window.rows)


def test_reads_ngrams_off_the_columns() -> None:
    window = JacobiWindow(4, 3, PROMPT, seed=0)
    window.rows = [[10, 11, 12], [21, 22, 23], [32, 33, 34]]
    assert window.ngrams([43, 44, 45]) == [(10, (21, 32, 43)), (11, (22, 33, 44)), (12, (23, 34, 45))]


def test_level_two_has_a_single_row() -> None:
    window = JacobiWindow(2, 3, PROMPT, seed=0)
    window.rows = [[10, 11, 12]]
    assert window.ngrams([21, 22, 23]) == [(10, (21,)), (11, (22,)), (12, (23,))]
    window.advance(1, root=5, new=[21, 22, 23])
    assert window.rows[0][:2] == [5, 23]
    assert window.rows[0][2] in PROMPT


def test_no_window() -> None:
    window = JacobiWindow(4, 0, PROMPT, seed=0)
    window.advance(2, root=5, new=[])
    assert window.rows == [] and window.width == 0 and window.ngrams([]) == []


@given(level=st.integers(2, 5), widths=st.lists(st.integers(0, 7), min_size=1, max_size=8))
def test_resized_it_keeps_its_leftmost_columns_and_fills_up_as_ever(level: int, widths: list[int]) -> None:
    window = JacobiWindow(level, 4, PROMPT, seed=0)
    for width in widths:
        before, was_full = [list(row) for row in window.rows], window.is_full
        root = window.rows[0][0] if window.rows else 5
        window.resize(width, root)
        n_missing = level - 1 - len(window.rows)
        assert [len(row) for row in window.rows] == [width + n_missing] * len(window.rows)
        if not width:
            assert window.rows == [] and window.ngrams([]) == []
        elif before:
            assert window.is_full == was_full
            assert all(new[1 : len(old)] == old[1 : len(new)] for new, old in zip(window.rows, before, strict=True))
        else:
            assert len(window.rows) == 1
        if width:
            assert window.rows[0][0] == root
        window.advance(0, root=6, new=[7] * window.width)


def test_starts_from_prompt_tokens_by_seed() -> None:
    rows = [JacobiWindow(5, 40, PROMPT, seed=seed).rows for seed in (0, 0, 1)]
    assert rows[0] == rows[1] != rows[2]
    assert set(rows[0][0]) == set(PROMPT)
