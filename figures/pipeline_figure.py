"""Draw what one FAFO step does: figures/pipeline.png and figures/pipeline.pdf.

    python figures/pipeline_figure.py

Who sees whom is not drawn by hand: it comes from the code that decodes (tree, window, layout and selector).
"""

# ruff: noqa: E402 - the module path is put right before our modules are imported

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[0] = str(HERE.parent)  # instead of this folder, whose modules might hide others of their names

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.path import Path as Line

from figures.example_step import Step, example_step
from figures.style import PAGE, SMALL, house_style, save

# Lengths are inches.
HEIGHT, CELL = 3.7, 0.15
LEFT, TOP = 1.38, 2.78  # corner of the matrix
ROWS = 0.7  # left side of the tokens before it
COLUMN_GAP, ROW_GAP = 0.12, 0.08  # between cached tokens and new rows, between verification and window rows
CACHE, LOOP = 3.2, 0.18  # heights of the cache's cells and of the way back
BLUE, ORANGE, PALE_BLUE, PALE_ORANGE = "#0072b2", "#e69f00", "#cfe3f1", "#fdeccb"
DARK_BLUE, DARK_ORANGE, GREY = "#00507d", "#8a5a00", "#555555"
HATCH = "//////"


def draw(step: Step) -> Figure:
    """Draw a step: the cache on top, below it a line per row with whom it sees, at the right what comes of it."""
    figure = Figure(figsize=(PAGE, HEIGHT))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, PAGE), ylim=(0, HEIGHT))
    axes.axis("off")
    draw_cache(axes, step)
    draw_matrix(axes, step)
    draw_rows(axes, step)
    draw_verdict(axes, step)
    draw_pool(axes, step)
    return figure


def draw_cache(axes: Axes, step: Step) -> None:
    """The cache, its selected tokens marked, and behind it what this step commits."""
    write(axes, LEFT - 0.08, CACHE + CELL / 2, "KV cache", ha="right", weight="bold")
    for column, selected in enumerate(step.selected):
        cell(axes, x_of(step, column), CACHE, PALE_ORANGE if selected else "white", HATCH if selected else "")
    edges = np.flatnonzero(np.diff(np.r_[False, step.selected, False]))
    for first, behind in zip(edges[::2], edges[1::2], strict=True):
        left, right = x_of(step, first) + 0.02, x_of(step, behind - 1) + CELL - 0.02
        foot, head = CACHE + CELL + 0.03, CACHE + CELL + 0.08
        axes.plot([left, left, right, right], [foot, head, head, foot], color=DARK_ORANGE, linewidth=0.8)
    middle = LEFT + step.n_cached * CELL / 2
    write(axes, middle, CACHE + CELL + 0.18, "selected, here: first and most recent", color=DARK_ORANGE)
    for row in (0, *step.accepted):
        x = x_of(step, step.n_cached + row)
        cell(axes, x, CACHE, PALE_BLUE, linestyle=(0, (2, 1)))
        arrow(axes, [(x + CELL / 2, TOP + CELL + 0.05), (x + CELL / 2, CACHE - 0.01)], BLUE)
    said = "committed after the pass:\nthe root and accepted guesses, nothing else"
    write(axes, x + CELL + 0.08, CACHE + CELL / 2, said, ha="left", color=DARK_BLUE)


def draw_matrix(axes: Axes, step: Step) -> None:
    """A filled cell where a row sees a cached token or another row."""
    for row, column in np.ndindex(step.sees.shape):
        verifies = row < step.n_verify
        colour, hatch = (BLUE, "") if verifies else (PALE_ORANGE, HATCH)
        seen = step.sees[row, column]
        cell(axes, x_of(step, column), y_of(step, row), colour if seen else "white", hatch if seen else "", "#bbbbbb")
    for row, letter in enumerate(step.tokens):
        token(axes, x_of(step, step.n_cached + row), TOP + 0.03, letter, row < step.n_verify, row in step.accepted)
    middle = LEFT + step.n_cached * CELL / 2
    plate = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "none"}
    write(axes, middle, middle_of(step, 0, step.n_verify), "verification: the whole cache", bbox=plate)
    hidden = np.flatnonzero(~step.selected)
    middle = (x_of(step, hidden[0]) + x_of(step, hidden[-1]) + CELL) / 2
    said = "window:\nonly the\nselected\ntokens"
    write(axes, middle, middle_of(step, step.n_verify, len(step.tokens)), said, bbox=plate)
    write(axes, x_of(step, step.n_cached + step.n_verify), TOP + CELL + 0.12, "the step's own rows", "left", color=GREY)


def draw_rows(axes: Axes, step: Step) -> None:
    """Each row's token before its line, by depth in the tree of guesses or by column of the window."""
    for row, letter in enumerate(step.tokens):
        x, y = x_of_row(step, row), y_of(step, row)
        token(axes, x, y, letter, row < step.n_verify, row in step.accepted)
        if 0 < row < step.n_verify:
            parent = step.layout.tree.parents[row]
            trunk = x_of_row(step, parent) + CELL / 2
            axes.plot([trunk, trunk, x], [y_of(step, parent), y + CELL / 2, y + CELL / 2], color=GREY, linewidth=0.7)
    write(axes, ROWS - 0.08, y_of(step, 0) + CELL / 2, "root", "right", color=DARK_BLUE)
    write(axes, ROWS - 0.08, middle_of(step, 1, step.n_verify), "guesses", "right", color=DARK_BLUE)
    middle = middle_of(step, step.n_verify, len(step.tokens))
    write(axes, ROWS - 0.08, middle, "Jacobi\nwindow", "right", color=DARK_ORANGE)
    said = "One forward pass: a line per row, filled where the row sees a token"
    write(axes, LEFT, y_of(step, len(step.tokens) - 1) - 0.1, said, "left", color=GREY)


def draw_verdict(axes: Axes, step: Step) -> None:
    """What becomes of root and guesses."""
    x, y = right_of(step), TOP - 0.07
    arrow(axes, [(x - 0.24, y), (x - 0.05, y)], DARK_BLUE)
    write(axes, x, y, "Find out", "left", color=DARK_BLUE, weight="bold")
    write(axes, x, y - 0.27, "accepted: the longest\nguess that is right, and\nthe model's next token", "left")
    letters = [step.tokens[row] for row in step.accepted] + [step.bonus]
    for i, letter in enumerate(letters):
        token(axes, x + i * CELL, y - 0.68, letter, True, True)
    write(axes, x + len(letters) * CELL + 0.06, y - 0.68 + CELL / 2, f"{step.bonus}: next root", "left")


def draw_pool(axes: Axes, step: Step) -> None:
    """What becomes of the window, and the way back to the guesses."""
    x, y = right_of(step), y_of(step, step.n_verify) + CELL - 0.07
    arrow(axes, [(x - 0.24, y), (x - 0.05, y)], DARK_ORANGE)
    write(axes, x, y, "Fumble around", "left", color=DARK_ORANGE, weight="bold")
    write(axes, x, y - 0.21, f"{', '.join(step.new)} end the columns,\nwhich become n-grams:", "left")
    for i, ngram in enumerate(step.ngrams):
        for j, letter in enumerate(ngram):
            token(axes, x + 0.08 + (j + 0.3 * (j > 0)) * CELL, y - 0.62 - 1.15 * i * CELL, letter, False, False)
    bottom = y - 0.68 - 1.15 * (len(step.ngrams) - 1) * CELL
    frame = Rectangle((x, bottom), 4.3 * CELL + 0.16, y - 0.4 - bottom, fill=False, edgecolor=GREY, linewidth=0.8)
    axes.add_patch(frame)
    write(axes, x + 4.3 * CELL + 0.22, (y - 0.4 + bottom) / 2, "n-gram\npool", "left", weight="bold")
    start, end = x + 2.15 * CELL + 0.08, middle_of(step, 1, step.n_verify)
    arrow(axes, [(start, bottom), (start, LOOP), (0.07, LOOP), (0.07, end), (0.19, end)], GREY)
    said = "the next step's guesses: n-grams whose key is its root"
    write(axes, (start + 0.1) / 2, LOOP, said, bbox={"facecolor": "white", "edgecolor": "none", "pad": 2})


def cell(axes: Axes, x: float, y: float, face: str, hatch: str = "", edge: str = GREY, **kwargs: Any) -> None:
    """One square."""
    if hatch:  # in a layer of its own, so that it has a colour of its own
        axes.add_patch(Rectangle((x, y), CELL, CELL, facecolor=face, edgecolor=ORANGE, hatch=hatch, linewidth=0))
        face = "none"
    axes.add_patch(Rectangle((x, y), CELL, CELL, facecolor=face, edgecolor=edge, linewidth=0.5, **kwargs))


def token(axes: Axes, x: float, y: float, letter: str, verified: bool, accepted: bool) -> None:
    """A token in its square; accepted ones stand out."""
    face = PALE_BLUE if verified else PALE_ORANGE
    cell(axes, x, y, BLUE if accepted else face, edge=DARK_BLUE if verified else DARK_ORANGE)
    colour = "white" if accepted else "black"
    write(axes, x + CELL / 2, y + CELL / 2 - 0.005, letter, color=colour, weight="bold" if accepted else "normal")


def arrow(axes: Axes, points: Sequence[tuple[float, float]], colour: str) -> None:
    """A line through `points` with its head at the last."""
    axes.add_patch(
        FancyArrowPatch(path=Line(points), arrowstyle="-|>", mutation_scale=6, color=colour, linewidth=0.9, shrinkB=0)
    )


def write(axes: Axes, x: float, y: float, said: str, ha: str = "center", **kwargs: Any) -> None:
    """Text around a height, at the size of print."""
    axes.text(x, y, said, ha=ha, va="center", fontsize=SMALL, **kwargs)


def x_of(step: Step, column: int) -> float:
    """Left side of a cached token's column, or of a row's, which are numbered on."""
    return LEFT + column * CELL + COLUMN_GAP * (column >= step.n_cached)


def y_of(step: Step, row: int) -> float:
    """Lower side of a row's line."""
    return TOP - (row + 1) * CELL - ROW_GAP * (row >= step.n_verify)


def middle_of(step: Step, first: int, behind: int) -> float:
    """Middle height of the rows from `first` to before `behind`."""
    return (y_of(step, first) + CELL + y_of(step, behind - 1)) / 2


def x_of_row(step: Step, row: int) -> float:
    """Left side of the token before a row's line."""
    return ROWS + step.indent(row) * CELL


def right_of(step: Step) -> float:
    """Where the outcome is told."""
    return x_of(step, step.n_cached + len(step.tokens)) + 0.28


def main() -> None:
    """Write both files beside this script."""
    with house_style():
        save(draw(example_step()), HERE, "pipeline", dpi=200)


if __name__ == "__main__":
    main()
