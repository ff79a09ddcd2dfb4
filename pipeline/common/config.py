"""Reading the two JSON files that define an experiment, with overrides, and saying what is wrong."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from inspect import signature
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from eval import DATASETS, Dataset, EvalParams
from pipeline.common.json_file import JsonFile, parse_value, read_json
from pipeline.common.schemas import (
    METHODS,
    CompressedParams,
    EvalFile,
    LossyParams,
    Management,
    PipelineParams,
    SubDir,
)
from pipeline.errors import UserError, shown, suggest
from pipeline.fafo.drafter import Drafter
from pipeline.fafo.selectors import Full, Selector
from pipeline.fafo.selectors.named import selector_named
from pipeline.fafo.settings import DecodeSettings
from pipeline.lossy.fastkv import TokenSelectivePropagation

# Where decoding is lossy, these names mean the whole system, of which the selector of that name is a part.
_SYSTEMS: dict[str, type[Selector]] = {"fastkv": TokenSelectivePropagation}


@dataclass(frozen=True)
class Override:
    """One `--set` (or `--limit`) from the command line; it replaces a value of one of the two files."""

    option: str  # as typed, for errors
    path: tuple[str, ...]
    value: Any


@dataclass(frozen=True)
class Experiment:
    """Both configs, checked, with overrides applied."""

    pipeline: PipelineParams  # of the method's own class
    selector: Selector
    drafter: Drafter | None
    eval: EvalParams
    sub_dir: SubDir
    pipeline_file: JsonFile
    eval_file: JsonFile

    def pipeline_params(self) -> dict[str, Any]:
        """The effective `pipeline_params`, selector's and drafter's included, as they are recorded."""
        return self.pipeline.model_dump() | as_json(self.selector) | as_json(self.drafter)

    def decode_settings(self, eos_token_ids: tuple[int, ...]) -> DecodeSettings:
        """What the decoding loop needs of it; keys that a method lacks leave the loop's defaults: plain decoding."""
        names = {field.name for field in fields(DecodeSettings)}
        shared = {name: value for name, value in self.pipeline.model_dump().items() if name in names}
        lossy = isinstance(self.pipeline, LossyParams)
        return DecodeSettings(
            **shared, selector=self.selector, drafter=self.drafter, lossy=lossy, eos_token_ids=eos_token_ids
        )


def as_json(settings: Selector | Drafter | None) -> dict[str, Any]:
    """The hyperparameters of a selector or drafter, by name."""
    found: dict[str, Any] = {} if settings is None else TypeAdapter(type(settings)).dump_python(settings, mode="json")
    return found


def parse_override(text: str) -> Override:
    """Read `a.b=value`; the value is JSON, or else a string.

    Raises:
        UserError: there is no "=", or the key does not start with pipeline_params, eval_params or management.
    """
    key, equals, value = text.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or len(path) < 2 or not all(path):
        raise UserError(f"--set {text}: should look like pipeline_params.window=7")
    if path[0] not in ("pipeline_params", "eval_params", "management"):
        raise UserError(f"--set {text}: the key should start with pipeline_params, eval_params or management")
    return Override(f"--set {text}", path, parse_value(value.strip()))


def distribute(overrides: Sequence[Override], pipeline_paths: Sequence[Path]) -> list[list[Override]]:
    """The overrides that each of several pipeline configs has a use for.

    A key of `pipeline_params` goes to the configs whose method or selector has it; if there are none, to all, which is
    an error when they are loaded.

    Raises:
        UserError: a config can't be read, or its method or selector is unknown.
    """
    of_pipeline = [override for override in overrides if override.path[0] == "pipeline_params"]
    known = [_Checker(read_json(path), of_pipeline).known_keys() for path in pipeline_paths]
    return [
        [
            override
            for override in overrides
            if override not in of_pipeline
            or override.path[1] in keys
            or not any(override.path[1] in others for others in known)
        ]
        for keys in known
    ]


def load_experiment(pipeline_path: Path, eval_path: Path, overrides: Sequence[Override] = ()) -> Experiment:
    """Read and check both configs.

    Raises:
        UserError: anything is wrong with a file or an override; one line names file, key, value and remedy.
    """
    pipeline_file, eval_file = read_json(pipeline_path), read_json(eval_path)
    of_pipeline = [o for o in overrides if o.path[0] == "pipeline_params"]
    of_eval = [o for o in overrides if o.path[0] != "pipeline_params"]
    checker = _Checker(pipeline_file, of_pipeline)
    pipeline, selector, drafter = checker.pipeline()
    eval_config = _Checker(eval_file, of_eval).eval()
    experiment = Experiment(
        *(pipeline, selector, drafter, eval_config.eval_params, eval_config.management.sub_dir),
        *(pipeline_file, eval_file),
    )
    checker.check_together(experiment)
    return experiment


class _Checker:
    """Checks one file; knows enough about where values came from to say so."""

    def __init__(self, file: JsonFile, overrides: Sequence[Override]) -> None:
        self.file = file
        self.overrides = overrides
        self.data = json.loads(json.dumps(file.data))
        for override in overrides:
            self._apply(override)

    def _apply(self, override: Override) -> None:
        target = self.data
        for name in override.path[:-1]:
            target = target.setdefault(name, {})
            if not isinstance(target, dict):
                raise UserError(f"{override.option}: {name} holds no further keys in {self.file.path}")
        target[override.path[-1]] = override.value

    def eval(self) -> EvalFile:
        params = self.data.get("eval_params")
        known: Iterable[str] = EvalParams.model_fields
        try:
            if isinstance(params, dict) and "dataset" in params:
                params_class = self._dataset(params.get("dataset")).params
                known = params_class.model_fields
                self.data["eval_params"] = params_class(**params)
        except ValidationError as error:
            raise self._explain([error], known, ("eval_params",)) from None
        try:
            return EvalFile(**self.data)
        except ValidationError as error:
            raise self._explain([error], EvalFile.model_fields) from None

    def _dataset(self, name: Any) -> Dataset[Any]:
        where = ("eval_params", "dataset")
        if isinstance(name, str) and name in DATASETS:
            return DATASETS[name]
        hint = suggest(name if isinstance(name, str) else "", DATASETS)
        raise self._error(where, f"found {shown(name)}; unknown dataset{hint}")

    def pipeline(self) -> tuple[PipelineParams, Selector, Drafter | None]:
        """Split the keys: those that are neither the method's own nor its drafter's belong to the selector."""
        params = self._params()
        schema, selector_class = METHODS[params["method"]], self._selector_class(params)
        of_drafter = signature(schema.drafter).parameters if schema.drafter else {}
        own = {key: value for key, value in params.items() if key in schema.model_fields}
        drafters = {key: value for key, value in params.items() if key in of_drafter}
        rest = {key: value for key, value in params.items() if not (key in own or key in drafters)}
        errors: list[ValidationError] = []
        drafter = None
        try:
            if schema.drafter is not None:
                drafter = schema.drafter(**drafters)
        except ValidationError as error:
            errors.append(error)
        try:
            pipeline = schema(**own)
            shared = signature(selector_class).parameters.keys() & schema.model_fields.keys()
            rest |= {key: getattr(pipeline, key) for key in shared}  # such as the seed of what a selector draws
        except ValidationError as error:
            errors.append(error)
        try:
            selector = selector_class(**rest)
        except ValidationError as error:
            errors.append(error)
        if errors:
            raise self._explain(errors, self.known_keys(), ("pipeline_params",))
        return pipeline, selector, drafter

    def check_together(self, experiment: Experiment) -> None:
        """Refuse what is right key by key and still can't be decoded with."""
        try:
            experiment.decode_settings(())
        except ValidationError as error:
            raise self._explain([error], (), ("pipeline_params",)) from None

    def known_keys(self) -> list[str]:
        """The keys that may stand in `pipeline_params`: those of the method, of its drafter and of its selector."""
        params = self._params()
        schema = METHODS[params["method"]]
        classes = [self._selector_class(params), *([schema.drafter] if schema.drafter else [])]
        return [*schema.model_fields, *(key for found in classes for key in signature(found).parameters)]

    def _params(self) -> dict[str, Any]:
        """`pipeline_params`, with a known method and otherwise unchecked."""
        for key in self.data.keys() - {"pipeline_params"}:
            raise self._error((key,), f"unknown key{suggest(key, ['pipeline_params'])}")
        params = self.data.get("pipeline_params")
        if not isinstance(params, dict):
            raise self._error(("pipeline_params",), f"found {shown(params)}; it should be an object")
        method = params.get("method")
        if not isinstance(method, str) or method not in METHODS:
            *first, last = map(shown, METHODS)
            message = f"found {shown(method)}; it should be {', '.join(first)} or {last}"
            raise self._error(("pipeline_params", "method"), message)
        return params

    def _selector_class(self, params: dict[str, Any]) -> type[Selector]:
        """The class of the selector, for a method that has one; others see all."""
        if not issubclass(METHODS[params["method"]], CompressedParams):
            return Full
        name, is_lossy = params.get("kv_method"), params["method"] == "lossy"
        if is_lossy and isinstance(name, str) and name in _SYSTEMS:
            return _SYSTEMS[name]
        try:
            found = selector_named(name)
            if found.only_lossy and not is_lossy:
                raise UserError(f'found {shown(name)}, which works in lossy decoding only: with "method": "lossy"')
        except UserError as error:
            raise self._error(("pipeline_params", "kv_method"), str(error)) from None
        return found

    def _explain(self, errors: list[ValidationError], known: Iterable[str], prefix: tuple[str, ...] = ()) -> UserError:
        """What pydantic found, in one line; a misspelt key first, since it also makes another one missing."""
        details = [detail for error in errors for detail in error.errors(include_url=False)]
        unknown = ("extra_forbidden", "unexpected_keyword_argument")
        detail = next((d for d in details if d["type"] in unknown), details[0])
        path = prefix + tuple(str(part) for part in detail["loc"])
        if detail["type"] in unknown:
            return self._error(path, f"unknown key{suggest(path[-1], _siblings(path, known))}")
        if detail["type"] in ("missing", "missing_argument"):
            return self._error(path, "missing; this key is required")
        message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
        if not detail["loc"]:  # about several keys, which the message names
            return self._error(path, message)
        return self._error(path, f"found {shown(detail['input'])}; {message}")

    def _error(self, path: tuple[str, ...], message: str) -> UserError:
        touched = (o for o in reversed(self.overrides) if path[: len(o.path)] == o.path[: len(path)])
        option = next((o.option for o in touched), None)
        source = f"{self.file.path} with {option}" if option else str(self.file.path)
        return UserError(f"{source}: {'.'.join(path)}: {message}")


def _siblings(path: tuple[str, ...], known: Iterable[str]) -> Iterable[str]:
    """The keys that could stand where the unknown one does."""
    nested = {
        "management": Management.model_fields,
        "sub_dir": SubDir.model_fields,
    }
    return nested.get(path[-2], known) if len(path) > 1 else known
