"""Whether a figure can be read."""

from itertools import combinations

from matplotlib.figure import Figure
from matplotlib.text import Text
from pytest import MonkeyPatch

from figures.style import SMALL


def assert_readable(figure: Figure) -> None:
    """No text is small, cut off, or on another."""
    figure.draw_without_rendering()  # puts everything in its place
    shown: list[Text] = []
    with MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", lambda text, _: shown.append(text))
        figure.draw_without_rendering()
    boxes = {text: text.get_window_extent() for text in shown if text.get_text() and text.get_visible()}
    page = figure.bbox.padded(1)
    assert min(float(text.get_fontsize()) for text in boxes) >= SMALL
    for text, box in boxes.items():
        assert page.x0 <= box.x0 <= box.x1 <= page.x1, text
        assert page.y0 <= box.y0 <= box.y1 <= page.y1, text
    for (one, box), (other, other_box) in combinations(boxes.items(), 2):
        assert not box.padded(-1).overlaps(other_box.padded(-1)), (one, other)
