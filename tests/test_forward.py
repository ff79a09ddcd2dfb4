"""Reading tokens off logits."""

import pytest
import torch

from pipeline.fafo.forward import greedy_tokens, top_tokens


def test_the_first_of_equal_logits_is_taken() -> None:
    logits = torch.zeros(3, 1000)
    logits[1, [5, 900]] = 2.0
    logits[2, 999] = 1.0
    assert greedy_tokens(logits) == logits.argmax(-1).tolist() == [0, 5, 999]


@pytest.mark.parametrize("vocabulary", [128 * 9, 128 * 4, 1000, 24, 4, 3, 1])
def test_top_tokens_are_those_of_topk(vocabulary: int) -> None:
    logits = torch.randn(5, vocabulary, generator=torch.Generator().manual_seed(0))
    tokens, chances = top_tokens(logits, 4)
    expected = logits.topk(min(4, vocabulary))
    assert tokens == expected.indices.tolist()
    torch.testing.assert_close(torch.tensor(chances), expected.values.softmax(-1))
