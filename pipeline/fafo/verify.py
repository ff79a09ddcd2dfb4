"""Which guess is accepted."""

from collections.abc import Sequence

from pipeline.fafo.tree import GuessTree


def longest_match(tree: GuessTree, predicted: Sequence[int]) -> list[int]:
    """Follow the model's own choices down the tree.

    Args:
        predicted: for each row of the tree, the token that the model puts after it.

    Returns: the rows that plain decoding would have visited, root first. Their predicted tokens are the step's
    output: the accepted guess tokens, then the one that the model itself adds.
    """
    path = [0]
    while (child := tree.children[path[-1]].get(predicted[path[-1]])) is not None:
        path.append(child)
    return path
