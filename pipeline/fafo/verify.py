"""Which guess is accepted."""

from collections.abc import Callable

from pipeline.fafo.tree import GuessTree


def accept(tree: GuessTree, take: Callable[[int], int | None]) -> list[int]:
    """Follow the model's own choices down the tree.

    Args:
        take: chooses the token after a row, puts it into the output and returns it, or None if decoding ends with it.
            It is called in the order of plain decoding, once for each token that plain decoding would have produced.

    Returns: the rows visited, root first: these are the ones to commit.
    """
    rows = [0]
    while (token := take(rows[-1])) is not None and (child := tree.children[rows[-1]].get(token)) is not None:
        rows.append(child)
    return rows
