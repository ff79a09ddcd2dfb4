"""Choosing a token the way transformers' own loop does: logits processors on its true prefix, then argmax or a draw."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import LogitsProcessorList


@dataclass
class ProcessedChoice:
    """Choose one token after another, each from the scores that plain decoding would have had.

    Guesses are deterministic, so drawing from the model's distribution and then looking whether some guess agrees is
    speculative sampling: a guess is accepted with its own probability, and otherwise the token comes from what the
    rejected guesses leave of the distribution. Each output token takes one draw, as in plain sampling, so the same
    random numbers give the same text whatever is guessed.

    Source: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", ICML 2023, for the
    distribution; the coupling to plain sampling is ours.

    processors: applied to float32 scores [n_rows, vocabulary] of the prefix [n_rows, length], once per output token.
    before: tokens in front of the text that processors see too, such as left padding.
    row, n_rows: which row of a batch this is. Processors get a batch of that size, since some keep a state per row; the
        other rows of it mean nothing.
    generator: of the draws; None is torch's global one, as in transformers.
    scores, logits: of each output token, if `keep` is set.
    """

    processors: LogitsProcessorList = field(default_factory=LogitsProcessorList)
    do_sample: bool = False
    before: list[int] = field(default_factory=list)
    row: int = 0
    n_rows: int = 1
    generator: torch.Generator | None = None
    keep: bool = False
    scores: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)

    def __call__(self, text: list[int], logits: Tensor) -> int:
        """Choose what follows `text`, given the model's logits [vocabulary] there."""
        raw = logits.unsqueeze(0).to(dtype=torch.float32, copy=self.keep)
        prefix = torch.tensor([self.before + text] * self.n_rows, device=logits.device)
        of_batch = self.processors(prefix, raw.repeat(self.n_rows, 1))  # type: ignore[arg-type]
        scores = of_batch[self.row : self.row + 1]
        if self.keep:
            self.logits.append(raw)
            self.scores.append(scores)
        if not self.do_sample:
            return int(scores.argmax(dim=-1))
        return int(torch.multinomial(scores.softmax(dim=-1), num_samples=1, generator=self.generator))
