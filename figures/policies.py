"""Which policy FastGen gives the KV heads of a model: by layer, and head by head."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from figures.style import MARGIN, PAGE, Look, bar_handle, fit, legend_below

HEIGHT = 1.6  # inches, of a line of plots


def policy_figure(given: Mapping[str, NDArray[np.int64]], names: Sequence[str]) -> Figure:
    """A line of two plots for each title: shares of the KV heads of a layer, and each head's most frequent policy.

    given: the policies that heads were given, as indices of `names`, [prompts, layers, kv_heads]. The more a policy
    keeps, the darker it is.
    """
    figure = Figure(figsize=(PAGE, HEIGHT * len(given)), layout="constrained")
    grid = figure.subplots(len(given), 2, squeeze=False)
    looks = [Look(colour, "", "") for colour in _shades(len(names))]
    for (left, right), (title, policies) in zip(grid, given.items(), strict=True):
        draw_shares(left, shares_by_layer(policies, len(names)), looks)
        draw_heads(right, most_frequent(policies, len(names)), looks)
        left.set_title(fit(title, PAGE / 2 - MARGIN))
        right.set_title(fit("most frequent policy of each head", PAGE / 2 - MARGIN))
        for axes in (left, right):
            axes.set_xlabel("layer")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_below(figure, [bar_handle(look, name) for look, name in zip(looks, names, strict=True)])
    return figure


def shares_by_layer(policies: NDArray[np.int64], n_policies: int) -> NDArray[np.float64]:
    """How many of a layer's heads, over all prompts, were given each policy, [policies, layers]."""
    return np.stack([(policies == policy).mean(axis=(0, 2)) for policy in range(n_policies)])


def most_frequent(policies: NDArray[np.int64], n_policies: int) -> NDArray[np.int64]:
    """What most prompts gave each head, of equally frequent policies the first, [layers, kv_heads]."""
    return np.stack([(policies == policy).sum(axis=0) for policy in range(n_policies)]).argmax(axis=0)


def draw_shares(axes: Axes, shares: NDArray[np.float64], looks: Sequence[Look]) -> None:
    """Stacked bars, a layer each; shares: [policies, layers]."""
    layers = np.arange(shares.shape[1])
    for share, below, look in zip(shares, shares.cumsum(axis=0) - shares, looks, strict=True):
        axes.bar(layers, share, 1, below, color=look.colour, edgecolor="white", linewidth=0.3)
    axes.set(ylabel="share of KV heads", xlim=(-0.5, len(layers) - 0.5), ylim=(0, 1))


def draw_heads(axes: Axes, policies: NDArray[np.int64], looks: Sequence[Look]) -> None:
    """A map of heads; policies: [layers, kv_heads]."""
    n_layers, n_heads = policies.shape
    colours = ListedColormap([look.colour for look in looks])
    edges = np.arange(n_layers + 1) - 0.5, np.arange(n_heads + 1) - 0.5
    axes.pcolormesh(*edges, policies.T, cmap=colours, vmin=-0.5, vmax=len(looks) - 0.5, edgecolors="white", lw=0.3)
    axes.set_ylabel("KV head")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[:].set_visible(False)


def _shades(n: int) -> list[str]:
    return [to_hex(colour) for colour in colormaps["viridis"](np.linspace(1, 0, n))]
