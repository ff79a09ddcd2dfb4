"""Loading a model and its tokenizer, with errors that say what would be right."""

import logging
from dataclasses import dataclass, field
from typing import Any

import torch
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
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

from pipeline.common.access import hub_token, token_source
from pipeline.common.hardware import check_memory, resolve_device
from pipeline.common.memory import is_out_of_memory
from pipeline.common.paths import from_root
from pipeline.common.schemas import BaselineParams, PipelineParams
from pipeline.common.shard import WHOLE, Shard
from pipeline.errors import UserError
from pipeline.fafo.support import check_model, context_limit

log = logging.getLogger(__name__)

# What of a generation config changes greedy outputs when it is set, and the values that leave them alone.
_GREEDY_SETTINGS: dict[str, tuple[object, ...]] = {
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
    "watermarking_config": (None,),
    "stop_strings": (None, []),
    "max_time": (None,),
    "do_sample": (None, False),
}
# The same for what matters with do_sample only.
_SAMPLING_SETTINGS: dict[str, tuple[object, ...]] = {
    "temperature": (None, 1, 1.0),
    "top_k": (None, 0),
    "top_p": (None, 1, 1.0),
    "min_p": (None, 0, 0.0),
    "top_h": (None,),
    "typical_p": (None, 1, 1.0),
    "epsilon_cutoff": (None, 0, 0.0),
    "eta_cutoff": (None, 0, 0.0),
}
# One of these holds a tokenizer of the model types that are supported.
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
# What transformers raises for a file that is no JSON object, or has values of wrong types.
_BROKEN = (LookupError, TypeError, AttributeError)


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to decode.

    eos_token_ids: all that end an output. ignored_generation_config: see `ignored_settings`.
    chat_template_kwargs: what the chat template gets besides the messages.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    eos_token_ids: tuple[int, ...]
    ignored_generation_config: list[str]
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)


def load_model(params: PipelineParams, shard: Shard = WHOLE) -> LoadedModel:
    """Load `params.model_name` onto `params.device`; where processes share the prompts, each onto a GPU of its own.

    Raises:
        UserError: no such model, hub not reachable, no access, unsupported architecture, no such device, too
            little memory, or broken files; found out before the weights are loaded wherever that is possible.
    """
    device = resolve_device(params.device, shard)
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
    except (*_BROKEN, OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        if is_out_of_memory(error):
            raise
        raise UserError(f"pipeline_params.model_name: found {params.model_name!r}, {_reason(error)}") from error
    if ignored := ignored_settings(model.generation_config):
        log.warning("the model's generation config sets %s; decoding is plain greedy, without it", ", ".join(ignored))
    return LoadedModel(model, tokenizer, eos_ids(model.generation_config), ignored, dict(params.chat_template_kwargs))


def load_for_measuring(model_name: str, n_new_tokens: int, dtype: str, device: str) -> LoadedModel:
    """`load_model` for scripts that have no config; arguments are the keys of the same name."""
    params = {"model_name": model_name, "n_new_tokens": n_new_tokens, "dtype": dtype, "device": device}
    return load_model(BaselineParams.model_validate({"method": "baseline", **params}))


def eos_ids(generation_config: GenerationConfig | None) -> tuple[int, ...]:
    """All EOS ids of a generation config, which holds one, a list of them, or none.

    Raises:
        UserError: it holds anything else.
    """
    found = generation_config.eos_token_id if generation_config else None
    ids = [] if found is None else found if isinstance(found, list) else [found]
    if any(type(token) is not int for token in ids):
        raise UserError(
            f"the model's generation config: eos_token_id: found {found!r}; it should be a token id, or a list of them"
        )
    return tuple(ids)


def ignored_settings(generation_config: GenerationConfig | None) -> list[str]:
    """The settings, as "name=value", that make transformers' own output differ from plain decoding."""
    sampling = getattr(generation_config, "do_sample", None)
    settings = _GREEDY_SETTINGS | _SAMPLING_SETTINGS if sampling else _GREEDY_SETTINGS
    return [
        f"{name}={value}"
        for name, neutral in settings.items()
        if (value := getattr(generation_config, name, None)) not in neutral
    ]


def _source(name: str) -> str:
    """A folder's path, or else `name` as a hub id."""
    folder = from_root(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UserError(f"pipeline_params.model_name: {folder} has no config.json; name a model's folder")
        if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
            raise UserError(
                f"pipeline_params.model_name: {folder} has no tokenizer ({' or '.join(_TOKENIZER_FILES)}); "
                "put the model's there"
            )
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
        if isinstance(link, HfHubHTTPError) and link.response.status_code == 401:
            return f"but the hub does not accept the token from {token_source()}; put a valid one there, or none"
        if isinstance(link, HFValidationError):
            return "which is neither an existing folder nor a possible hub id"
        if isinstance(link, LocalEntryNotFoundError | OfflineModeIsEnabled):
            return "which is no folder, and the hub can't be reached; check the network or name a folder"
    reason = (str(error).strip() or repr(error)).splitlines()[0]
    if isinstance(error, _BROKEN):
        reason = f"one of its files has what no such file should ({type(error).__name__}: {reason})"
    return f"which can't be loaded: {reason}"
