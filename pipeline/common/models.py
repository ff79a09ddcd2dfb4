"""Loading a model and its tokenizer, with errors that say what would be right."""

import logging
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from pipeline.common.access import hub_token
from pipeline.common.hardware import check_memory, resolve_device
from pipeline.common.paths import from_root
from pipeline.common.schemas import PipelineParams
from pipeline.errors import UserError
from pipeline.fafo.support import check_model, context_limit

log = logging.getLogger(__name__)

# What changes a greedy choice when it is set, and the values that leave it alone.
_GREEDY_PROCESSORS: dict[str, tuple[object, ...]] = {
    "repetition_penalty": (None, 1, 1.0),
    "encoder_repetition_penalty": (None, 1, 1.0),
    "no_repeat_ngram_size": (None, 0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "num_beams": (None, 1),
    "bad_words_ids": (None, []),
    "sequence_bias": (None, {}, []),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "exponential_decay_length_penalty": (None,),
    "guidance_scale": (None, 1, 1.0),
}


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to decode. eos_token_ids: all that end an output."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    eos_token_ids: tuple[int, ...]


def load_model(params: PipelineParams) -> LoadedModel:
    """Load `params.model_name` onto `params.device`.

    Raises:
        UserError: no such model, hub not reachable, no access, unsupported architecture, no such device, too
            little memory, or broken files; found out before the weights are loaded wherever that is possible.
    """
    device = resolve_device(params.device)
    dtype: torch.dtype = getattr(torch, params.dtype)
    source, token = _source(params.model_name), hub_token()
    log.info("loading %s (%s, %s)", params.model_name, params.dtype, device)
    try:
        config = AutoConfig.from_pretrained(source, token=token)
        check_model(config)
        check_memory(config, dtype, device, n_tokens=_expected_tokens(config, params.n_new_tokens))
        tokenizer = AutoTokenizer.from_pretrained(source, token=token)
        model = _load_weights(source, dtype, device, token)
    except UserError:
        raise
    except (OSError, ValueError, ImportError, RuntimeError, KeyError, SafetensorError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise UserError(f"pipeline_params.model_name: found {params.model_name!r}, {_reason(error)}") from error
    if unused := ignored_processors(model.generation_config):
        log.warning("the model's generation config sets %s; decoding is plain greedy, without it", ", ".join(unused))
    return LoadedModel(model, tokenizer, eos_ids(model.generation_config))


def eos_ids(generation_config: GenerationConfig | None) -> tuple[int, ...]:
    """All EOS ids of a generation config, which holds one, a list of them, or none."""
    ids = generation_config.eos_token_id if generation_config else None
    return () if ids is None else (ids,) if isinstance(ids, int) else tuple(ids)


def ignored_processors(generation_config: GenerationConfig | None) -> list[str]:
    """The settings, as "name=value", that make transformers' greedy output differ from plain decoding."""
    return [
        f"{name}={value}"
        for name, neutral in _GREEDY_PROCESSORS.items()
        if (value := getattr(generation_config, name, None)) not in neutral
    ]


def _source(name: str) -> str:
    """A folder's path, or else `name` as a hub id."""
    folder = from_root(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UserError(f"pipeline_params.model_name: {folder} has no config.json; name a model's folder")
        return str(folder)
    if name.rstrip("/") == "models/SmolLM2-135M-Instruct":
        raise UserError(f"pipeline_params.model_name: no folder {folder}; python scripts/prepare_smollm2.py makes it")
    if name.startswith(("/", "~", ".", "models/")):
        raise UserError(f"pipeline_params.model_name: no folder {folder}; name an existing one, or a hub id")
    return name


def _load_weights(source: str, dtype: torch.dtype, device: str, token: str | None) -> PreTrainedModel:
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        source,
        dtype=dtype,
        device_map=None if device == "cpu" else device,
        token=token,
        output_loading_info=True,
    )
    model, report = loaded
    if missing := sorted(report["missing_keys"]):  # transformers would fill them with random numbers
        raise UserError(f"{source}: the weights lack {len(missing)} tensors, {missing[0]} first; get the files again")
    offloaded = {"cpu", "disk"} & {str(place) for place in getattr(model, "hf_device_map", {}).values()}
    if offloaded and device != "cpu":
        raise UserError(f"too little memory: {source} does not fit on the CUDA devices; use a smaller dtype")
    return model.eval()


def _expected_tokens(config: PretrainedConfig, n_new_tokens: int) -> int:
    limit = context_limit(config)
    return n_new_tokens if limit is None else min(n_new_tokens, limit)


def _reason(error: BaseException) -> str:
    """Why loading failed, in a line; the hub's own errors are among the causes of what was raised."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    for link in chain:
        if isinstance(link, GatedRepoError):
            return (
                "which is gated: accept its license on its hub page, and give a token with access in HF_TOKEN "
                "or config/access_tokens.py"
            )
        if isinstance(link, RepositoryNotFoundError):
            return "which is no folder, and no model on the hub (or a private one); check the spelling"
        if isinstance(link, HFValidationError):
            return "which is neither an existing folder nor a possible hub id"
        if isinstance(link, LocalEntryNotFoundError | OfflineModeIsEnabled):
            return "which is no folder, and the hub can't be reached; check the network or name a folder"
    return f"which can't be loaded: {(str(error).strip() or repr(error)).splitlines()[0]}"
