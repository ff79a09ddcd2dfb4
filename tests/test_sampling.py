"""Drawn tokens: those of plain sampling for the same seed, and its distribution."""

from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    TemperatureLogitsWarper,
)

from pipeline.fafo.choice import ProcessedChoice
from pipeline.fafo.decode import Decoding
from pipeline.fafo.selectors import StreamLLM
from pipeline.fafo.settings import DecodeSettings
from pipeline.fafo.tree import GuessTree
from pipeline.fafo.verify import accept
from tests.generating import PROMPTS, both, wide_model
from tests.tiny import tiny_model

WARPERS: dict[str, dict[str, Any]] = {
    "plain": {"top_k": 0},
    "temperature": {"temperature": 0.7, "top_k": 0},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.8, "top_k": 0},
    "min_p": {"min_p": 0.2, "top_k": 0},
    "all": {"temperature": 0.7, "top_k": 12, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.1},
}


@pytest.mark.parametrize("warpers", WARPERS.values(), ids=WARPERS)
def test_drawn_text_is_that_of_plain_sampling_for_the_same_seed(warpers: dict[str, Any]) -> None:
    texts = set()
    for prompt, seed in product(PROMPTS, range(3)):
        expected, got = both("llama-gqa-tied", prompt, seed, do_sample=True, **warpers)
        assert torch.equal(got, expected)
        texts.add(tuple(got[0].tolist()))
    assert len(texts) > len(PROMPTS)  # the seed matters


def test_temperature_near_zero_is_greedy() -> None:
    for prompt in PROMPTS:
        greedy, _ = both("llama-gqa-tied", prompt)
        _, cold = both("llama-gqa-tied", prompt, do_sample=True, temperature=1e-4)
        assert torch.equal(cold, greedy)


@pytest.mark.parametrize("warpers", WARPERS.values(), ids=WARPERS)
def test_drawn_tokens_follow_the_enumerated_distribution(warpers: dict[str, Any]) -> None:
    """Chi-square of 50,000 3-token continuations of a model over 5 tokens.

    The model runs once for each prefix; choosing tokens and walking the guesses is done anew for each continuation.
    """
    n_tokens, n_draws = 5, 50_000
    model = wide_model(n_tokens)
    processors: Any = processors_of(model, GenerationConfig(do_sample=True, **warpers))

    @cache
    def logits(prefix: tuple[int, ...]) -> torch.Tensor:
        with torch.no_grad():
            return model(torch.tensor([prefix])).logits[0, -1] * 8

    def probabilities(*prefix: int) -> torch.Tensor:
        scores = processors(torch.tensor([prefix]), logits(prefix).unsqueeze(0).clone())
        return scores.softmax(-1)[0].double()

    expected = torch.zeros((n_tokens,) * 3, dtype=torch.double)
    for a, b, c in product(range(n_tokens), repeat=3):
        expected[a, b, c] = probabilities(0)[a] * probabilities(0, a)[b] * probabilities(0, a, b)[c]

    choice = ProcessedChoice(processors, do_sample=True, generator=torch.Generator().manual_seed(0))
    counts = torch.zeros_like(expected)
    for _ in range(n_draws):
        text = [0]

        def take(row: int, text: list[int] = text) -> int | None:
            text.append(choice(text, logits(tuple(text))))
            return text[-1] if len(text) < 4 else None

        while len(text) < 4:
            accept(GuessTree(text[-1], [(1, 2), (1, 3), (4, 2)]), take)
        counts[text[1], text[2], text[3]] += 1

    assert counts[expected == 0].sum() == 0
    common = expected * n_draws >= 5
    observed = torch.stack([*counts[common], counts[~common].sum()])
    wanted = torch.stack([*expected[common], expected[~common].sum()])
    wanted *= n_draws / wanted.sum()  # their sum is 1 up to rounding
    used = wanted > 0
    assert chisquare(observed[used], wanted[used]).pvalue > 1e-3


def processors_of(model: Any, config: GenerationConfig) -> LogitsProcessorList:
    """The processors that transformers prepares for `config`."""
    prepared: list[LogitsProcessorList] = []

    def keep(model: Any, input_ids: Any, logits_processor: LogitsProcessorList, **_: Any) -> Any:
        prepared.append(logits_processor)
        return input_ids

    model.generate(torch.tensor([[0]]), generation_config=config, custom_generate=keep)
    return prepared[0]


def test_sampling_in_the_decoding_loop_with_our_own_generator() -> None:
    model = tiny_model("llama-gqa-tied")

    def run(seed: int, **settings: Any) -> list[int]:
        choice = ProcessedChoice(
            LogitsProcessorList([TemperatureLogitsWarper(0.8)]), True, generator=torch.Generator().manual_seed(seed)
        )
        return Decoding(model, [1, 2, 3], DecodeSettings(30, **settings), choice).run().token_ids

    fafo: dict[str, Any] = {"level": 3, "window": 3, "num_guesses": 3, "selector": StreamLLM(1, 2)}
    with torch.no_grad():
        assert run(1) == run(1, **fafo) == run(1, **fafo) != run(2)
