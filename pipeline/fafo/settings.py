"""How to decode, and what decoding one prompt gave."""

from dataclasses import dataclass as plain_dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from pipeline.fafo.drafter import Drafter
from pipeline.fafo.exact import MAX_LEVEL
from pipeline.fafo.selectors import Full, Selector
from pipeline.fafo.step_times import StepTimes

StopReason = Literal["eos", "length", "context_limit", "criteria"]
MOST_NEW_TOKENS = 1_000_000
NumNewTokens = Annotated[int, Field(ge=1, le=MOST_NEW_TOKENS)]
Level = Annotated[int, Field(ge=2, le=64)]
Window = Annotated[int, Field(ge=0, le=1024)]
PoolName = Literal["lru", "ranked"]
PlannerName = Literal["fixed", "auto"]
NumGuesses = Annotated[int, Field(ge=0, le=1024)]


@dataclass(frozen=True, config={"extra": "forbid", "strict": True, "arbitrary_types_allowed": True})
class DecodeSettings:
    """How to decode. The defaults are plain decoding: no window and nothing to verify.

    level: n-gram size N; a guess has N - 1 tokens.
    window: columns of the Jacobi window.
    num_guesses: guesses verified a step, and kept per key. With the ranked pool or planner "auto" this and `window` are
        the most that a step may have: `num_guesses` * (`level` - 1) guess rows, and `window` columns.
    pool: "lru" is the paper's n-gram pool, "ranked" a back-off model that puts the likeliest guesses first.
    planner: "fixed" verifies all guesses and runs the whole window at each step, "auto" what pays on this machine.
    step_times: how long steps take, for planner "auto"; None is measured, or read from disk, when decoding starts.
    compile: run a compiled model (see `compiled.py`).
    selector: what the window sees of the cache.
    lossy: each token sees what the selector chooses, and not the whole cache: output may differ from plain decoding's.
        Nothing is guessed. Of the prompt all is seen until the first new token.
    drafter: guesses alone, in place of pool and window; what it runs on compressed views sees what `selector` chooses.
    seed: of the window's initial tokens.
    exact: make each token's logits the same bits whatever the other settings are (see `exact.py`); slower.
    """

    n_new_tokens: NumNewTokens
    eos_token_ids: tuple[int, ...] = ()
    level: Level = 2
    window: Window = 0
    num_guesses: NumGuesses = 0
    pool: PoolName = "lru"
    planner: PlannerName = "fixed"
    step_times: StepTimes | None = None
    pool_from_prompt: bool = True
    pool_from_output: bool = True
    selector: Selector = Full()
    drafter: Drafter | None = None
    seed: int = 42
    exact: bool = False
    compile: bool = False
    lossy: bool = False

    @property
    def has_window_rows(self) -> bool:
        """Whether steps may have window rows; the root is the first place of the window, and none of them."""
        return (self.level - 1) * self.window > 1

    @property
    def n_guess_rows(self) -> int:
        """Most guess rows of a step."""
        return (self.level - 1) * self.num_guesses if self.drafter is None else self.drafter.n_rows

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.drafter is not None and (self.window or self.num_guesses or self.lossy):
            raise ValueError("drafter: it guesses alone: window and num_guesses should be 0, and lossy false")
        if self.drafter is not None and self.exact and self.drafter.depth >= MAX_LEVEL:
            raise ValueError(
                f"exact: found guesses of {self.drafter.depth} tokens, but with exact they have at most {MAX_LEVEL - 1}"
            )
        if self.exact and self.level > MAX_LEVEL:
            raise ValueError(f"level: found {self.level}, but with exact it is at most {MAX_LEVEL}")
        if self.exact and self.compile:
            raise ValueError("compile: the exact mode needs PyTorch's own kernels, so it can't be compiled")
        if self.lossy and (self.window or self.num_guesses):
            raise ValueError("lossy: nothing can be guessed in lossy decoding: window and num_guesses should be 0")
        if self.lossy and self.exact:
            raise ValueError("exact: lossy decoding has no plain decoding to be bit-identical to")
        if self.selector.only_lossy and not self.lossy:
            raise ValueError(f"selector: {type(self.selector).__name__} works in lossy decoding only")
        return self


@plain_dataclass(frozen=True)
class Generation:
    """What decoding one prompt gave.

    token_ids: the new tokens, an EOS included.
    accepted_lengths: new tokens of each decoding step.
    verified_rows, window_rows: rows of each step: root and guesses; the window's.
    draft_passes: passes of a model that guessed, before each step's own pass.
    draft_cache_share: of the committed entries, how many such passes saw, over layers and passes; None without any.
    stop_reason: "length" is `n_new_tokens`, "context_limit" the model's, "criteria" a caller's own.
    cache_tokens: committed entries, as a mean over the steps. seen_cache_tokens: how many of them new tokens saw, in
        lossy decoding; None if it is not, since then they see all.
    kv_bytes: keys and values that the attention of a step reads from the cache, in bytes of all layers, as a mean over
        the steps.
    n_window_steps: steps with window rows. cache_tokens_beside_window, window_cache_tokens: committed entries, and how
        many of them the window rows saw, both as means over these steps; None if there are none.
    n_reused_tokens: of the prompt, those whose cache entries were there already.
    token_sources: a letter per new token: where it came from; see `sources.py`.
    """

    token_ids: list[int]
    n_prompt_tokens: int
    accepted_lengths: list[int]
    verified_rows: list[int]
    window_rows: list[int]
    draft_passes: list[int]
    draft_cache_share: float | None
    prefill_seconds: float
    decode_seconds: float
    stop_reason: StopReason
    cache_tokens: float
    seen_cache_tokens: float | None
    kv_bytes: float
    n_window_steps: int
    cache_tokens_beside_window: float | None
    window_cache_tokens: float | None
    n_reused_tokens: int
    token_sources: str
