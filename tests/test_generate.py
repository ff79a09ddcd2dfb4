"""`custom_generate=fafo_generate` against transformers' own generation."""

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    DynamicCache,
    EosTokenCriteria,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedTokenizerFast,
    StaticCache,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    TextIteratorStreamer,
)

from pipeline.errors import UserError
from pipeline.fafo.generate import fafo_generate
from tests.generating import FAFO, PROMPTS, both, wide_model
from tests.tiny import CONFIGS, tiny_model


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_greedy(name: str, prompt: list[int]) -> None:
    expected, got = both(name, prompt)
    assert torch.equal(got, expected)


PROCESSORS: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.3},
    "no_repeat_ngram": {"no_repeat_ngram_size": 2},
    "min_new_tokens": {"min_new_tokens": 15, "eos_token_id": [7, 9]},
    "bad_words": {"bad_words_ids": [[4], [6, 7]]},
    "suppress_tokens": {"suppress_tokens": [1, 2, 3, 11]},
    "forced_eos": {"forced_eos_token_id": 5, "eos_token_id": 5},
    "begin_suppress": {"begin_suppress_tokens": [1, 8]},
    "sequence_bias": {"sequence_bias": [[[3, 4], 2.0]]},
    "length_penalty": {"exponential_decay_length_penalty": (5, 1.2), "eos_token_id": 3},
    "several": {"repetition_penalty": 1.1, "no_repeat_ngram_size": 3, "min_new_tokens": 5, "eos_token_id": 2},
}


@pytest.mark.parametrize("name", ["llama-gqa-tied", "qwen2-gqa"])
@pytest.mark.parametrize("processors", PROCESSORS.values(), ids=PROCESSORS)
def test_processors_see_the_true_prefix(name: str, processors: dict[str, Any]) -> None:
    for prompt in PROMPTS:
        expected, got = both(name, prompt, **processors)
        assert torch.equal(got, expected)


def test_the_returned_dictionary() -> None:
    arguments = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    expected, got = both("qwen2-gqa", [1, 2, 3], repetition_penalty=1.2, **arguments)
    assert torch.equal(got.sequences, expected.sequences)
    for name in ("scores", "logits"):
        for a, b in zip(getattr(got, name), getattr(expected, name), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    (statistics,) = got.statistics
    assert statistics.token_ids == got.sequences[0, 3:].tolist()
    assert sum(statistics.accepted_lengths) == 30
    assert got.past_key_values.get_seq_length() == expected.past_key_values.get_seq_length() == 32


def test_an_earlier_turn_is_continued() -> None:
    model = tiny_model("llama-gqa-tied")
    texts = []
    for fafo in ({}, FAFO):
        earlier = DynamicCache()
        text = torch.tensor([[1, 2, 3]])
        for turn in ([4, 5], [6], []):
            output = model.generate(  # type: ignore[operator]
                text,
                attention_mask=torch.ones_like(text),
                past_key_values=earlier,
                max_new_tokens=9,
                do_sample=False,
                **fafo,
            )
            assert earlier.get_seq_length() == output.shape[1] - 1
            text = torch.cat([output, torch.tensor([turn], dtype=torch.long)], dim=1)
        texts.append(text.tolist())
    assert texts[0] == texts[1]


def test_rows_of_a_batch_are_right_each_for_itself() -> None:
    model = tiny_model("llama-gqa-tied")
    ids = torch.tensor([[0, 0, 0, 7, 8], [1, 2, 3, 1, 2], [0, 0, 0, 0, 3]])
    mask = torch.tensor([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]])
    alone = [
        model.generate(ids[i : i + 1, m.bool()], attention_mask=m[m.bool()][None], max_new_tokens=30, do_sample=False)  # type: ignore[operator]
        for i, m in enumerate(mask)
    ]
    eos = int(alone[0][0, -25])  # ends the rows at different places
    arguments = {
        "attention_mask": mask,
        "max_new_tokens": 30,
        "do_sample": False,
        "eos_token_id": eos,
        "pad_token_id": eos,
    }
    expected, got = model.generate(ids, **arguments), model.generate(ids, **arguments, **FAFO)  # type: ignore[operator]
    assert torch.equal(got, expected)
    lengths = {int((row[5:] == eos).sum()) for row in got}
    assert len(lengths) > 1
    both_penalized = [model.generate(ids, **arguments, repetition_penalty=1.4, **f) for f in ({}, FAFO)]  # type: ignore[operator]
    assert torch.equal(*both_penalized)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


class Parrot(torch.nn.Module):
    """Chooses what a fixed text has next; stands in for the processors."""

    def __init__(self, text: list[int]) -> None:
        super().__init__()
        self.text = text

    def forward(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self.text[ids.shape[1] - 1]] = 0.0
        return forced


TEXT = "ab 日本 😀 né 👩‍👩‍👧 end. ab 日本 😀\nnext"


def test_a_streamer_gets_whole_characters_only() -> None:
    tokenizer = byte_tokenizer()
    text = tokenizer(TEXT)["input_ids"]
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)  # type: ignore[arg-type]
    wide_model().generate(
        torch.tensor([[1]]),
        max_new_tokens=len(text),
        do_sample=False,
        logits_processor=LogitsProcessorList([Parrot(text)]),
        **FAFO | {"custom_generate": partial(fafo_generate, streamer=streamer)},
    )
    pieces = list(streamer)
    assert "".join(pieces) == TEXT
    assert not any("\ufffd" in piece for piece in pieces)


def test_stop_strings_end_the_output_where_plain_generation_ends_it() -> None:
    tokenizer, model = byte_tokenizer(), wide_model()
    text = tokenizer(TEXT)["input_ids"]
    outputs = []
    for fafo in ({}, FAFO):
        outputs.append(
            model.generate(
                torch.tensor([[1]]),
                max_new_tokens=len(text),
                do_sample=False,
                logits_processor=LogitsProcessorList([Parrot(text)]),
                stopping_criteria=StoppingCriteriaList([StopStringCriteria(tokenizer, ["d. ab", "end!"])]),
                return_dict_in_generate=True,
                **fafo,
            )
        )
    assert torch.equal(outputs[1].sequences, outputs[0].sequences)
    assert outputs[1].statistics[0].stop_reason == "criteria"
    assert str(tokenizer.decode(outputs[1].sequences[0, 1:])).endswith("d. ab")


IDS = torch.tensor([[1, 2, 3]])
TWO = {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 6]]), "attention_mask": torch.ones(2, 3)}


class Never(StoppingCriteria):
    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.zeros(len(input_ids), dtype=torch.bool)


def filled(n_tokens: int, n_rows: int = 1) -> DynamicCache:
    cache = DynamicCache()
    for layer in range(2):
        cache.update(torch.zeros(n_rows, 4, n_tokens, 8), torch.zeros(n_rows, 4, n_tokens, 8), layer)
    return cache


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"num_beams": 2}, "num_beams"),
        ({"return_dict_in_generate": True, "output_attentions": True}, "output_attentions"),
        ({"return_dict_in_generate": True, "output_hidden_states": True}, "output_hidden_states"),
        ({"guidance_scale": 1.5}, "guidance_scale"),
        ({"kv_method": "nothing"}, '^kv_method: found "nothing", which names no selector; known: .*quest'),
        ({"kv_params": {"num_local": 0}}, "num_local"),
        ({"level": 1}, "level: .* found 1"),
        ({"level": 33, "exact": True}, "level: found 33, but with exact it is at most 32"),
        (
            {"exact": True, "compile": True},
            "^compile: the exact mode needs PyTorch's own kernels, so it can't be compiled$",
        ),
        ({"pool": "ngram"}, "pool: .* found 'ngram'"),
        ({"kv_params": {"x": 1}}, "kv_params.x: "),
        ({"attention_mask": torch.tensor([[1, 0, 1]])}, "attention_mask: has zeros after its first one"),
        ({"attention_mask": torch.ones(1, 5)}, "attention_mask: found shape|position_ids"),
        ({"position_ids": torch.tensor([[0, 2, 4]])}, "position_ids"),
        ({"inputs_embeds": torch.zeros(1, 3, 32)}, "inputs_embeds"),
        ({"past_key_values": "static"}, "found a StaticCache"),
        ({"past_key_values": filled(3)}, "past_key_values: holds 3 tokens, and the whole text only 3"),
        ({"past_key_values": filled(2, n_rows=2)}, "past_key_values: holds 2 rows"),
        ({"past_key_values": filled(1), "attention_mask": torch.tensor([[0, 1, 1]])}, "one row without padding"),
        (TWO | {"max_time": 100.0}, "max_time"),
        (TWO | {"return_dict_in_generate": True, "output_scores": True}, "output_scores"),
        (TWO | {"stopping_criteria": StoppingCriteriaList([Never()])}, "stopping_criteria: .* Never"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_done_is_refused_by_name(arguments: dict[str, Any], named: str) -> None:
    model = tiny_model("llama-mha")
    if arguments.get("past_key_values") == "static":
        arguments = {"past_key_values": StaticCache(config=model.config, max_cache_len=40)}
    before = model.config._attn_implementation
    with pytest.raises(UserError, match=named):
        model.generate(  # type: ignore[operator]
            **{"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "max_new_tokens": 4} | FAFO | arguments
        )
    assert model.config._attn_implementation == before


@pytest.mark.parametrize(
    "criterion", [MaxLengthCriteria(9), EosTokenCriteria([11, 3]), Never()], ids=lambda c: type(c).__name__
)
def test_criteria_of_the_caller_are_heard(criterion: StoppingCriteria) -> None:
    for name, prompt in product(["llama-gqa-tied", "qwen2-gqa"], PROMPTS[:2]):
        expected, got = both(name, prompt, stopping_criteria=StoppingCriteriaList([criterion]))
        assert torch.equal(got, expected)


class Counting(LogitsProcessor):
    """Forbids a token that depends on how often it was asked: what a processor with a memory needs."""

    n_calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.n_calls += 1
        scores[:, self.n_calls % scores.shape[-1]] = -torch.inf
        return scores


def test_each_row_of_a_batch_has_processors_of_its_own() -> None:
    model = tiny_model("qwen2-gqa")
    outputs = [
        model.generate(  # type: ignore[operator]
            **TWO, max_new_tokens=12, do_sample=False, logits_processor=LogitsProcessorList([Counting()]), **fafo
        )
        for fafo in ({}, FAFO)
    ]
    assert torch.equal(*outputs)


def test_off_on_off() -> None:
    model = tiny_model("qwen3-gqa-tied")
    ids = torch.tensor([[1, 2, 3]])
    arguments = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 20, "do_sample": False}

    def logits() -> torch.Tensor:
        with torch.no_grad():
            return model(ids).logits

    before, first = logits(), model.generate(ids, **arguments)  # type: ignore[operator]
    assert torch.equal(model.generate(ids, **arguments, **FAFO), first)  # type: ignore[operator]
    assert torch.equal(logits(), before)
    assert torch.equal(model.generate(ids, **arguments), first)  # type: ignore[operator]
