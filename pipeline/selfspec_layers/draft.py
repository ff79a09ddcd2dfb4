"""Self-speculation by layer skipping: the model drafts with some of its layers left out."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from transformers import PreTrainedModel

from pipeline.common.json_file import read_json
from pipeline.common.paths import from_root
from pipeline.errors import UserError
from pipeline.fafo.attention import fafo_attention_on
from pipeline.fafo.drafter import Drafter, Drafting, ModelPool
from pipeline.fafo.forward import Forward
from pipeline.fafo.pool import Pool
from pipeline.files import write_whole
from pipeline.selfspec_layers.search import Limits, search
from pipeline.selfspec_layers.skipping import SkippedLayers, twin_of

log = logging.getLogger(__name__)

FILE_NAME = "skipped_layers.json"


@dataclass(frozen=True, config={"extra": "forbid", "strict": True})
class LayerSkip(Drafter):
    """The model decodes `gamma` tokens one by one with some sublayers left out; one pass of the whole model verifies.

    Both work on one cache: of the text, the drafting model sees the whole model's entries. Attention and MLP of a layer
    are skipped each on its own.

    skipped_layers: what to skip. skipped_layers_file: the same from an earlier search's file; relative names start at
        the repository root. With neither, `prepare` searches (see `search`). What an earlier session of the run found,
        or read from the file, stays.
    skip_ratio: share of the sublayers to skip, for the search; None is as many as is fastest.
    n_trials: sets that a search tries. n_search_tokens: new tokens behind each of the first prompts that it tries them
        on. seed: of the search.

    Source: Zhang et al., "Draft & Verify: Lossless Large Language Model Acceleration via Self-Speculative Decoding",
    ACL 2024. Deviation: drafts have `gamma` tokens, and don't end earlier where the drafting model is unsure.
    """

    gamma: Annotated[int, Field(ge=1, le=64)] = 4
    skipped_layers: SkippedLayers | None = None
    skipped_layers_file: str | None = None
    skip_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    n_trials: Annotated[int, Field(ge=1, le=100_000)] = 60
    n_search_tokens: Annotated[int, Field(ge=1, le=100_000)] = 32
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if self.skipped_layers is not None and self.skipped_layers_file is not None:
            raise ValueError("skipped_layers and skipped_layers_file: found both; give one of them")
        return self

    @property
    def n_rows(self) -> int:
        """See `Drafter.n_rows`."""
        return self.gamma

    def prepare(self, model: PreTrainedModel, prompts: Callable[[], Sequence[list[int]]], folder: Path) -> Self:
        """The same settings with the set itself. See `Drafter.prepare`."""
        found = self._known(model, folder)
        if found is None:
            limits = Limits(self.n_trials, self.n_search_tokens, self.seed)
            found = search(model, prompts(), self.gamma, self.skip_ratio, limits)
        twin_of(model, found)
        log.info("drafting skips %s", _described(found))
        if not found.places:
            log.warning("drafting skips nothing, so it can't be faster than plain decoding: no set that was tried pays")
        return replace(self, skipped_layers=found, skipped_layers_file=None)

    def save(self, folder: Path) -> None:
        """See `Drafter.save`. The file can be named in another run's config, or its content given there."""
        assert self.skipped_layers is not None, "save() goes after prepare()"
        text = json.dumps(self.skipped_layers.model_dump(mode="json"), indent=2) + "\n"
        write_whole(folder / FILE_NAME, text.encode())

    def pool(self, drafting: Drafting) -> Pool:
        """See `Drafter.pool`.

        Raises:
            UserError: it is not known what to skip, or the model lacks such layers.
        """
        if self.skipped_layers is None:
            raise UserError("skipped_layers: found None; give a set, or let prepare() find one first")
        model = drafting.model
        with fafo_attention_on(model):  # compiling sets the config, which both models share
            forward = Forward(twin_of(model, self.skipped_layers), compile=drafting.compile)
        share = 1 - len(self.skipped_layers.attention) / model.config.num_hidden_layers
        return ModelPool(forward, drafting.cache, self.gamma, views=[], read_share=share)

    def _known(self, model: PreTrainedModel, folder: Path) -> SkippedLayers | None:
        """The set, if there is one: the config has it, a session before this one had it, or a named file has it."""
        if self.skipped_layers is not None:
            return self.skipped_layers
        if (folder / FILE_NAME).exists():
            return _read(folder / FILE_NAME, "skipped_layers", model)
        if self.skipped_layers_file is None:
            return None
        key = "skipped_layers_file"
        try:
            path = from_root(self.skipped_layers_file)
        except UserError as error:
            raise UserError(f"{key}: {error}") from None
        return _read(path, key, model)


def _read(path: Path, key: str, model: PreTrainedModel) -> SkippedLayers:
    try:
        found = SkippedLayers(**read_json(path).data)
        found.check(model, str(path))
        return found
    except UserError as error:
        raise UserError(f"{key}: {error}") from None
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        where = ".".join(map(str, detail["loc"]))
        what = f"{where}: {detail['msg']}" if where else detail["msg"].removeprefix("Value error, ")
        raise UserError(f"{key}: {path}: {what}; it should be a file that an earlier search left") from None


def _described(found: SkippedLayers) -> str:
    said = f"attention {list(found.attention)} and MLP {list(found.mlp)}"
    if found.speed is None or found.matched is None:
        return said
    return f"{said}: predicted speed {found.speed:.2f}, {found.matched:.0%} of {found.n_tokens} tokens matched"
