"""Reading what transformers' `generate` hands over, and refusing by name what FAFO can't do."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteriaList,
)
from transformers.generation import UnbatchedClassifierFreeGuidanceLogitsProcessor

from pipeline.errors import UserError
from pipeline.fafo.selectors.base import KeyValues

Row = tuple[list[int], list[int]]  # left padding, prompt

UNDERSTOOD = {"attention_mask", "position_ids", "past_key_values", "cache", "cache_position", "use_cache"}
UNDERSTOOD |= {"logits_to_keep", "return_dict"}  # for the model call only


def read_rows(input_ids: Tensor, model_kwargs: Mapping[str, Any]) -> list[Row]:
    """Split each row of `input_ids` [batch, length] into padding and prompt.

    Raises:
        UserError: an argument of the model that FAFO doesn't pass on, or a mask or positions of another kind.
    """
    for name, value in model_kwargs.items():
        if name not in UNDERSTOOD and value is not None:
            raise UserError(f"{name}: FAFO doesn't pass this argument to the model; leave it out")
    mask, positions = model_kwargs.get("attention_mask"), model_kwargs.get("position_ids")
    if mask is None:
        mask = torch.ones_like(input_ids)
    if mask.shape != input_ids.shape:
        raise UserError(f"attention_mask: found shape {list(mask.shape)}, the whole text has {list(input_ids.shape)}")
    rows = []
    for i, tokens in enumerate(input_ids.tolist()):
        seen = mask[i].bool().tolist()
        start = seen.index(True) if True in seen else len(seen)
        if not all(seen[start:]):
            raise UserError(
                "attention_mask: has zeros after its first one, and FAFO decodes left-padded rows only (transformers "
                "infers a mask from pad_token_id if none is given: pass one)"
            )
        n = len(tokens) - start
        if positions is not None and positions[i, -n:].tolist() != list(range(len(tokens)))[:n]:
            raise UserError("position_ids: FAFO counts positions from each row's first token; leave them out")
        rows.append((tokens[:start], tokens[start:]))
    return rows


def read_criteria(
    criteria: StoppingCriteriaList, config: GenerationConfig
) -> tuple[int, tuple[int, ...], StoppingCriteriaList]:
    """Most tokens of prompt and output, the EOS ids, and the criteria that have to be asked."""
    lengths = [c.max_length for c in criteria if isinstance(c, MaxLengthCriteria)]
    of_eos = [c for c in criteria if isinstance(c, EosTokenCriteria)]
    eos = [int(i) for c in of_eos for i in torch.as_tensor(c.eos_token_id).flatten()]
    others = StoppingCriteriaList(c for c in criteria if not isinstance(c, MaxLengthCriteria | EosTokenCriteria))
    return min(lengths, default=config.max_length), tuple(eos), others


def keeps_scores(config: GenerationConfig) -> bool:
    """Whether scores or logits of each token are to be returned."""
    return bool(config.return_dict_in_generate and (config.output_scores or config.output_logits))


def refuse_unsupported(
    config: GenerationConfig, processors: LogitsProcessorList, criteria: StoppingCriteriaList, n_rows: int
) -> None:
    """Raise `UserError` for what can't be done, rather than ignore it."""
    refused = {
        "num_beams": (config.num_beams or 1) > 1,
        "output_attentions": bool(config.return_dict_in_generate and config.output_attentions),
        "output_hidden_states": bool(config.return_dict_in_generate and config.output_hidden_states),
        "prompt_lookup_num_tokens": config.prompt_lookup_num_tokens is not None,
        "penalty_alpha": bool(config.penalty_alpha),
        "dola_layers": config.dola_layers is not None,
        "token_healing": bool(config.token_healing),
        "cache_implementation": config.cache_implementation not in (None, "dynamic"),
    }
    for name, is_asked_for in refused.items():
        if is_asked_for:
            raise UserError(f"{name}: found {getattr(config, name)}, which FAFO can't do; leave it out")
    for processor in processors:
        if isinstance(processor, UnbatchedClassifierFreeGuidanceLogitsProcessor):
            raise UserError("guidance_scale: its logits processor runs the model itself, which FAFO can't do per row")
    if n_rows == 1:
        return
    if keeps_scores(config):
        raise UserError(f"output_scores, output_logits: FAFO returns them for one row, the batch has {n_rows}")
    has_eos = any(isinstance(c, EosTokenCriteria) for c in criteria)
    for criterion in criteria:
        if isinstance(criterion, MaxTimeCriteria):
            raise UserError(f"max_time: FAFO decodes rows one after the other and takes it for one, not for {n_rows}")
        if not has_eos and not isinstance(criterion, MaxLengthCriteria):
            raise UserError(
                f"stopping_criteria: without an EOS id, rows that {type(criterion).__name__} has ended would go on in "
                f"transformers until all have; FAFO takes it for one row, not for {n_rows}"
            )


def earlier_turn(cache: Any, rows: list[Row], config: GenerationConfig) -> list[KeyValues] | None:
    """The entries to continue from, for each layer; None if there are none.

    Raises:
        UserError: the cache is of another kind, or not of the beginning of the only row.
    """
    if cache is None:
        return None
    if type(cache) is not DynamicCache:
        raise UserError(f"past_key_values: found a {type(cache).__name__}; FAFO takes a DynamicCache")
    n_cached = cache.get_seq_length()
    if n_cached == 0:
        return None
    if len(rows) > 1 or rows[0][0]:
        raise UserError("past_key_values: FAFO continues an earlier turn of one row without padding")
    entries = [(layer.keys, layer.values) for layer in cache.layers if layer.keys is not None]
    if entries[0][0].shape[0] != 1:
        raise UserError(f"past_key_values: holds {entries[0][0].shape[0]} rows, the batch has 1")
    if n_cached >= len(rows[0][1]):
        raise UserError(
            f"past_key_values: holds {n_cached} tokens, and the whole text only {len(rows[0][1])}: give all of it"
        )
    return [(keys, values) for keys, values in entries if values is not None]
