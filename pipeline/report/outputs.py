"""What the page shows of each output, as JSON has it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from transformers import PreTrainedTokenizerBase

from pipeline.common.records import PromptResult, Verdict
from pipeline.fafo.marks import DRAFT, MODEL, OUTPUT, PROMPT, SUCCESSORS, WINDOW
from pipeline.fafo.sources import common_prefix
from pipeline.report.tokens import load_tokenizer, token_texts

GUESS = "g"  # older records don't tell guesses apart
SOURCES = {
    MODEL: "the model's own token",
    PROMPT: "guess from the prompt",
    OUTPUT: "guess from earlier output",
    WINDOW: "guess of the window",
    SUCCESSORS: "guess from the model's earlier ranking",
    DRAFT: "guess of passes of the model",
    GUESS: "guess of unrecorded source",
}

Json = dict[str, Any]


class Texts:
    """The texts of outputs, each once: most methods' are the same."""

    def __init__(self) -> None:
        self.all: list[list[Json]] = []
        self._places: dict[object, int] = {}
        self._tokenizers: dict[str, PreTrainedTokenizerBase | None] = {}

    def place(self, model_name: str, result: PromptResult) -> int:
        """Where in `all` the text of a result is, turn by turn."""
        turns = turns_of(result)
        key = (model_name, *((tuple(token_ids), text) for token_ids, text in turns))
        if key not in self._places:
            self._places[key] = len(self.all)
            self.all.append(divide(self._tokenizer(model_name), turns))
        return self._places[key]

    def _tokenizer(self, model_name: str) -> PreTrainedTokenizerBase | None:
        if model_name not in self._tokenizers:
            self._tokenizers[model_name] = load_tokenizer(model_name)
        return self._tokenizers[model_name]


def turns_of(result: PromptResult) -> list[tuple[list[int], str]]:
    """The token ids and the answer of each turn."""
    if not result.turns:
        return [(result.output_token_ids, result.output_text)]
    ends = list(accumulate(turn.n_new_tokens for turn in result.turns))
    return [
        (result.output_token_ids[end - turn.n_new_tokens : end], turn.output_text)
        for end, turn in zip(ends, result.turns, strict=True)
    ]


def divide(tokenizer: PreTrainedTokenizerBase | None, turns: Sequence[tuple[list[int], str]]) -> list[Json]:
    """The tokens' texts of each turn, and how many of them are the answer; of all turns or none the text alone."""
    divided: list[Json] = []
    for token_ids, answer in turns:
        tokens = token_texts(tokenizer, token_ids, answer) if tokenizer is not None else None
        if tokens is None:
            return [{"text": answer} for _, answer in turns]
        n_before = accumulate(map(len, tokens), initial=0)
        is_whole = len(answer) == sum(map(len, tokens))
        n_answer = len(tokens) if is_whole else sum(n < len(answer) for n in list(n_before)[:-1])
        divided.append({"tokens": tokens, "answer": n_answer})
    return divided


def output_json(result: PromptResult, baseline: PromptResult, text: int, verdict: Verdict | None) -> Json:
    """One output. `differs`: where the first token stands that is not the baseline's; `verdict`: an audit's on it."""
    differs = first_difference(result.output_token_ids, baseline.output_token_ids)
    return {
        "id": result.id,
        "group": result.group,
        "text": text,
        "sources": result.token_sources,
        "steps": result.accepted_lengths,
        "n_prompt": result.n_prompt_tokens,
        "cut": result.n_cut_tokens,
        "prefill": round(result.prefill_seconds, 6),
        "decode": round(result.decode_seconds, 6),
        "stop": result.stop_reason,
        "scores": result.scores,
        "differs": differs,
        "verdict": verdict if differs is not None else None,
    }


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """The index of the first token that differs, or that only one has; None if they are the same."""
    return None if ours == theirs else common_prefix(ours, theirs)


def source_shares(results: Iterable[PromptResult]) -> dict[str, float]:
    """The share of tokens from each source that occurs, by letter."""
    counts: Counter[str] = Counter()
    for result in results:
        letters = result.token_sources or MODEL * result.n_steps + GUESS * (result.n_new_tokens - result.n_steps)
        counts.update(letter if letter in SOURCES else GUESS for letter in letters)
    return {letter: counts[letter] / counts.total() for letter in SOURCES if counts[letter]}
