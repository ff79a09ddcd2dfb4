"""What may stand in the two JSON files of an experiment."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, SerializeAsAny, model_validator

from eval import EvalParams
from pipeline.fafo.drafter import Drafter
from pipeline.fafo.settings import Level, NumGuesses, NumNewTokens, PlannerName, PoolName, Window
from pipeline.files import TEMPORARY_SUFFIX
from pipeline.prompt_lookup.lookup import PromptLookup
from pipeline.schema import Schema
from pipeline.selfspec_kv.draft import CompressedDraft
from pipeline.selfspec_layers.draft import FILE_NAME, LayerSkip
from pipeline.token_recycling.recycling import TokenRecycling

LOG_NAME = "exp.log"
LOCK_NAME = "run.lock"
AUDIT_NAME = "audit.json"
RECORD_LOCK_NAME = "record.lock"
RESERVED_NAMES = (LOG_NAME, LOCK_NAME, RECORD_LOCK_NAME, AUDIT_NAME, FILE_NAME)  # in the output folder


def _check_device(device: str) -> str:
    kind, _, index = device.partition(":")
    if device not in ("auto", "cpu", "cuda") and not (kind == "cuda" and index.isascii() and index.isdigit()):
        raise ValueError('should be "auto", "cpu", "cuda" or "cuda:N"')
    return device


def _check_batch_size(batch_size: int) -> int:
    if batch_size != 1:
        raise ValueError("only 1 is supported for now")
    return batch_size


def _check_not_exact(exact: bool) -> bool:
    if exact:
        raise ValueError("should be false: lossy decoding has no plain decoding to be bit-identical to")
    return exact


def _check_sub_name(name: str) -> str:
    plain = name.removesuffix("/")
    if plain in ("", ".", "..") or "/" in plain or "\0" in plain:
        raise ValueError("should be a plain name, of a file or folder right in the output folder")
    return name


class PipelineParams(Schema):
    """`pipeline_params`: the keys that all methods share.

    drafter: guesses in place of FAFO's pool and window; its hyperparameters are keys too.
    """

    drafter: ClassVar[type[Drafter] | None] = None
    method: str
    model_name: Annotated[str, Field(min_length=1)]
    n_new_tokens: NumNewTokens
    dtype: Literal["float32", "bfloat16", "float16"] = "float16"
    device: Annotated[str, AfterValidator(_check_device)] = "auto"  # auto: all CUDA devices, else the CPU
    batch_size: Annotated[int, AfterValidator(_check_batch_size)] = 1
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42
    exact: bool = False  # the same bits for each token whatever it is batched with; slower
    compile: bool = False  # compile the model: minutes once, seconds afterwards
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)  # such as {"enable_thinking": false}

    @model_validator(mode="after")
    def _is_exact_or_compiled(self) -> Self:
        if self.exact and self.compile:
            raise ValueError("exact and compile exclude each other: the exact mode needs PyTorch's own kernels")
        return self


class BaselineParams(PipelineParams):
    """`pipeline_params` of standard auto-regressive decoding."""

    method: Literal["baseline"]


class CompressedParams(PipelineParams):
    """`pipeline_params` with a KV method, but for those that belong to the selector named by `kv_method`."""

    kv_method: str


class PlannedParams(PipelineParams):
    """`pipeline_params` of a method whose guesses cost nothing before they are verified."""

    planner: PlannerName = "fixed"  # as published; "auto" verifies what pays on this machine


class LookaheadParams(PlannedParams):
    """`pipeline_params` of lookahead decoding: FAFO whose window sees the whole cache."""

    method: Literal["lookahead"]
    level: Level
    window: Window
    num_guesses: NumGuesses
    pool_from_prompt: bool = True
    pool_from_output: bool = True


class FafoParams(CompressedParams, LookaheadParams):
    """`pipeline_params` of FAFO."""

    method: Literal["fafo"]  # type: ignore[assignment]
    pool: PoolName = "lru"  # the paper's; "ranked" verifies the likeliest guesses first


class PromptLookupParams(PlannedParams):
    """`pipeline_params` of prompt lookup decoding."""

    method: Literal["prompt_lookup"]
    drafter = PromptLookup


class TokenRecyclingParams(PlannedParams):
    """`pipeline_params` of token recycling."""

    method: Literal["token_recycling"]
    drafter = TokenRecycling


class SelfspecKvParams(CompressedParams):
    """`pipeline_params` of self-speculation by compressed KV."""

    method: Literal["selfspec_kv"]
    drafter = CompressedDraft


class SelfspecLayersParams(PipelineParams):
    """`pipeline_params` of self-speculation by layer skipping."""

    method: Literal["selfspec_layers"]
    drafter = LayerSkip


class LossyParams(CompressedParams):
    """`pipeline_params` of decoding in which every token sees no more of the cache than the selector chooses."""

    method: Literal["lossy"]
    exact: Annotated[bool, AfterValidator(_check_not_exact)] = False


METHODS: dict[str, type[PipelineParams]] = {
    "baseline": BaselineParams,
    "fafo": FafoParams,
    "lookahead": LookaheadParams,
    "prompt_lookup": PromptLookupParams,
    "token_recycling": TokenRecyclingParams,
    "selfspec_kv": SelfspecKvParams,
    "selfspec_layers": SelfspecLayersParams,
    "lossy": LossyParams,
}

SubName = Annotated[str, AfterValidator(_check_sub_name)]


class SubDir(Schema):
    """Names inside the output folder."""

    input_config: SubName = "input_config/"
    raw_results: SubName = "raw_results.jsonl"
    output_config: SubName = "output_config.json"

    @model_validator(mode="after")
    def _are_distinct(self) -> Self:
        names = [name.removesuffix("/") for name in (self.input_config, self.raw_results, self.output_config)]
        reserved = [*RESERVED_NAMES, names[-1] + TEMPORARY_SUFFIX]
        if len({*names, *reserved}) < len(names) + len(reserved):
            raise ValueError(f"should be three different names, none of them {' or '.join(reserved)}")
        return self


class Management(Schema):
    """`management`: where a run's files go."""

    sub_dir: SubDir = SubDir()


class EvalFile(Schema):
    """The whole eval config."""

    eval_params: SerializeAsAny[EvalParams]  # of the dataset that it names
    management: Management = Management()
