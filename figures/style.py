"""What all figures have in common: fonts, sizes, one look for each method, and how they are saved."""

import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from pipeline.comparison.runs import OPPONENTS

COLUMN, PAGE = 3.4, 7.0  # inches: widths of one column and of both
SMALL = 7  # points: nothing is smaller
MARGIN = 0.7  # inches: what labels of the y axis take, beside which a title is centred
LETTER, TITLE_LETTER = 0.055, 0.063  # inches: width of a letter of that size, and of a title's
RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that figures are the same everywhere
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "grid.linewidth": 0.4,
    "grid.color": "#cccccc",
    "hatch.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "pdf.fonttype": 42,  # text stays text
    "savefig.facecolor": "white",
}

FULL, PALE, OUTLINE = 1.0, 0.3, 0.0


@dataclass(frozen=True)
class Look:
    """How a series is drawn: hatch and marker tell methods apart where colours don't.

    fill: of bars and markers, how much of the colour there is. FAFO's are full of it, with thick lines, its opponents'
        pale, with dashed ones, and the lossy way of a KV method is in outline.
    """

    colour: str
    hatch: str
    marker: str
    fill: float = FULL

    def bar(self) -> dict[str, Any]:
        """How matplotlib is to draw a bar."""
        edge = "black" if self.fill == FULL else self.colour
        face = lighter(self.colour, 1 - self.fill)
        return {"facecolor": face, "edgecolor": edge, "hatch": self.hatch, "linewidth": 0.5}

    def line(self) -> dict[str, Any]:
        """How matplotlib is to draw a line."""
        is_full = self.fill == FULL
        width, face = (1.6, self.colour) if is_full else (0.9, "white")
        return {
            "color": self.colour, "linestyle": "-" if is_full else "--", "linewidth": width, "marker": self.marker,
            "markerfacecolor": face,
        }  # fmt: skip

    def variant(self, number: int) -> "Look":
        """The look of the method's variant of that number: lighter from one to the next."""
        return replace(self, colour=lighter(self.colour, (0.0, 0.35, 0.6, 0.75)[min(number, 3)]))


def lighter(colour: str, white: float) -> str:
    """A colour with a share of white in it."""
    red, green, blue = (part + (1 - part) * white for part in to_rgb(colour))
    return to_hex((red, green, blue))


# By KV method, then FAFO's opponents. The first colours are Okabe and Ito's, which people of all kinds of colour vision
# tell apart; they are too few, which is why hatches and markers differ too, and why the others, mostly Paul Tol's,
# are left to methods that are seldom drawn or are opponents.
KNOWN = {
    "baseline": Look("#7f7f7f", "", "x"),
    "full": Look("#009e73", "....", "^"),
    "stream-llm": Look("#0072b2", "", "o"),
    "quest": Look("#e69f00", "////", "s"),
    "snapkv": Look("#cc79a7", "\\\\\\\\", "D"),
    "h2o": Look("#d55e00", "xxxx", "v"),
    "pyramidkv": Look("#56b4e9", "----", "P"),
    "tova": Look("#000000", "", "*"),
    "fastkv": Look("#f0e442", "++++", "X"),
    "fastgen": Look("#882255", "oo", "h"),
    "lookahead": Look("#117733", "...", ">"),
    "prompt_lookup": Look("#aa4499", "xxx", "P"),
    "token_recycling": Look("#661100", "oo", "X"),
    "selfspec_layers": Look("#332288", "||||", "<"),
}
OTHERS = (
    Look("#999933", "\\\\", "p"),
    Look("#44aa99", "xx", "d"),
    Look("#6699cc", "//", "1"),
    Look("#ee8866", "--", "2"),
    Look("#77aadd", "..", "3"),
    Look("#bbcc33", "||", "4"),
)
DRAFTS = "---"  # beside a KV method's own hatch, where the model drafts on what it selects
PREFIX = re.compile(r"^(fafo|lossy|selfspec_kv)-")


def looks(series: Iterable[tuple[str, str]]) -> dict[str, Look]:
    """The look of each series, given as pairs of method and series.

    A KV method has its own, or else the next free one in alphabetical order; the lossy way has the same in outline, and
    self-speculation with it the same in pale.
    """
    variants: dict[str, list[str]] = {}
    for method, name in sorted(set(series)):
        variants.setdefault(method, []).append(name)
    unknown = sorted({PREFIX.sub("", method) for method in variants} - KNOWN.keys())

    def look(method: str) -> Look:
        name = PREFIX.sub("", method)
        found = KNOWN.get(name) or OTHERS[unknown.index(name) % len(OTHERS)]
        if method.startswith("selfspec_kv-"):
            found = replace(found, hatch=found.hatch + DRAFTS)
        return replace(found, fill=OUTLINE if method.startswith("lossy-") else PALE if opponent(method) else FULL)

    return {
        name: look(method).variant(number)
        for method, names in variants.items()
        for number, name in enumerate(ordered(names))
    }


def ordered(names: Iterable[str]) -> list[str]:
    """Names once each, by KV method and numbers in them by size; FAFO before its lossy way, and opponents last."""

    def parts(name: str) -> list[str | int]:
        return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]

    return sorted(set(names), key=lambda name: (opponent(name), parts(PREFIX.sub("", name)), name))


def opponent(name: str) -> int:
    """Of a method or series, the place among FAFO's opponents, from 1; 0 if it is none of them."""
    return next((i for i, method in enumerate(OPPONENTS, start=1) if name.startswith(method)), 0)


def house_style() -> AbstractContextManager[None]:
    """Draw and save in here: our settings, whatever the user's matplotlib is set to."""
    return matplotlib.style.context(RC, after_reset=True)


def save(figure: Figure, folder: Path, name: str, dpi: int = 300) -> list[Path]:
    """Write a figure as PNG and PDF; the same figure gives the same bytes. Return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    png, pdf = folder / f"{name}.png", folder / f"{name}.pdf"
    figure.savefig(png, dpi=dpi, metadata={"Software": None})
    figure.savefig(pdf, metadata={"CreationDate": None})
    return [png, pdf]


def fit(title: str, width: float) -> str:
    """A title, broken into lines of at most so many inches."""
    return "\n".join(fill(line, max(10, int(width / TITLE_LETTER))) for line in title.split("\n"))


def panels(titles: Sequence[str], height: float, y_label: str, width: float | None = None) -> tuple[Figure, list[Axes]]:
    """A figure with a plot per title, all of one y axis, up to three to a line.

    height, width: inches, of a line; a single plot takes one column of the page, several take both.
    """
    n = len(titles)
    n_columns = min(n, 3)
    n_lines = -(-n // n_columns)
    width = width or (COLUMN if n == 1 else PAGE)
    figure = Figure(figsize=(width, height * n_lines), layout="constrained")
    grid = list(figure.subplots(n_lines, n_columns, squeeze=False, sharey=True).flat)
    for surplus in grid[n:]:
        figure.delaxes(surplus)
    for axes, title in zip(grid, titles, strict=False):
        axes.set_title(fit(title, width / n_columns - MARGIN))
        axes.grid(axis="y")
    for axes in grid[:n:n_columns]:
        axes.set_ylabel(y_label)
    return figure, grid[:n]


def legend_below(figure: Figure, handles: Sequence[Artist]) -> None:
    """One legend for all plots, in as many columns as there is room for; the figure grows by it."""
    widths = [LETTER * len(str(handle.get_label())) + 0.5 for handle in handles]
    room = figure.get_figwidth()
    n_columns = len(handles) if sum(widths) <= room else max(1, int(room / max(widths)))
    n_lines = -(-len(handles) // n_columns)
    figure.set_figheight(figure.get_figheight() + 0.16 * n_lines + 0.1)
    figure.legend(handles=handles, loc="outside lower center", ncols=n_columns)


def bar_handle(look: Look, name: str) -> Patch:
    """What a legend shows of bars."""
    return Patch(**look.bar(), label=name)


def line_handle(look: Look, name: str) -> Line2D:
    """What a legend shows of a line."""
    return Line2D([], [], **look.line(), label=name)
