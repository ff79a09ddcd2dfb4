"""The tree that token recycling fills at each step: how many guesses stand behind each."""

from functools import cache
from math import prod

Path = tuple[int, ...]  # ranks on the way from the root: (0, 2) is the third successor of the first successor

# Children of each node, level by level from the root, each level in the order of its parents.
# Source: the tree of the paper's appendix, 80 nodes on 6 levels, "2.2.2" in its authors' code.
_N_CHILDREN = (
    (8,),
    (8, 4, 3, 2, 1, 1, 1, 1),
    (8, 3, 2, 1, 1, 1, 1, 1, 2, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0),
    (5, 2, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0),
    (3, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0),
    (2, 0, 0, 1, 0, 0, 0, 0),
)
MOST_ROWS = sum(map(sum, _N_CHILDREN))
MOST_RANKS = max(map(max, _N_CHILDREN))

# How often the next token is the successor of each rank: what 739 tokens of SmolLM2 showed (three prompts each of
# HumanEval, GSM8K and MT-Bench), smoothed so that they descend. They order the tree, and tell a planner what to expect.
RANK_CHANCES = (0.45, 0.11, 0.055, 0.045, 0.025, 0.02, 0.015, 0.01)


@cache
def static_tree(n_ranks: int, n_rows: int) -> dict[Path, float]:
    """The likeliest `n_rows` nodes of the published tree without the ranks from `n_ranks` on; there may be fewer.

    Returns: for each node the chance of the whole way to it, the likeliest first: a smaller tree is a beginning of a
        larger one, and parents come before their children.
    """
    nodes = [path for path in _published_tree() if max(path) < n_ranks]
    chances = {path: prod(RANK_CHANCES[rank] for rank in path) for path in nodes}
    nodes.sort(key=lambda path: -chances[path])
    return {path: chances[path] for path in nodes[:n_rows]}


def _published_tree() -> list[Path]:
    level: list[Path] = [()]
    nodes: list[Path] = []
    for n_children in _N_CHILDREN:
        level = [(*path, rank) for path, n in zip(level, n_children, strict=True) for rank in range(n)]
        nodes += level
    return nodes
