"""The model without some of its sublayers, made of the same weights."""

import copy
from typing import Annotated, Self, TypeVar
from weakref import WeakKeyDictionary

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.errors import UserError
from pipeline.schema import Schema

# The module that a skipped sublayer leaves out, and the norm before it, which nothing else reads.
_MODULES = {"attention": ("self_attn", "input_layernorm"), "mlp": ("mlp", "post_attention_layernorm")}
KINDS = tuple(_MODULES)
_TWINS: WeakKeyDictionary[PreTrainedModel, dict["SkippedLayers", PreTrainedModel]] = WeakKeyDictionary()

Indices = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)]  # strict would refuse JSON's arrays
Place = tuple[str, int]  # "attention" or "mlp", and a layer's index
Module = TypeVar("Module", bound=nn.Module)


class SkippedLayers(Schema):
    """Which sublayers to leave out, and what that is known to bring.

    attention, mlp: indices of the layers whose attention, or MLP, is left out.

    The rest says what a search found, and is unknown of a set that was written by hand:

    model: it was found for, as it was loaded. n_layers: of that model. gamma: tokens of a guess.
    weights_read: share of the model's weights that a drafting pass reads, the head's included.
    matched: share of the looked-at tokens of which both models think the same.
    tokens_per_step: that such guesses would have brought. speed: that this predicts, of plain decoding's.
    n_tokens: that were looked at. n_trials: sets that were tried.
    """

    attention: Indices
    mlp: Indices
    model: str | None = None
    n_layers: int | None = None
    gamma: int | None = None
    weights_read: float | None = None
    matched: float | None = None
    tokens_per_step: float | None = None
    speed: float | None = None
    n_tokens: int | None = None
    n_trials: int | None = None

    @model_validator(mode="after")
    def _names_each_once(self) -> Self:
        for kind in KINDS:
            indices = self.of(kind)
            if len(set(indices)) < len(indices):
                raise ValueError(f"{kind}: found {list(indices)}; each layer should be named once")
        return self

    def of(self, kind: str) -> tuple[int, ...]:
        """The indices of "attention" or "mlp"."""
        indices: tuple[int, ...] = getattr(self, kind)
        return indices

    @property
    def places(self) -> set[Place]:
        """All that is left out."""
        return {(kind, index) for kind in KINDS for index in self.of(kind)}

    def check(self, model: PreTrainedModel, key: str = "skipped_layers") -> None:
        """Raise `UserError` unless `model` has these layers, and as many as the one that the set was found for.

        Args:
            key: where the set stood, for the error.
        """
        n_layers = model.config.num_hidden_layers
        if self.n_layers not in (None, n_layers):
            raise UserError(
                f"{key}: found a set for a model of {self.n_layers} layers ({self.model}), and this one has "
                f"{n_layers}; search anew"
            )
        for kind in KINDS:
            last = max(self.of(kind), default=0)
            if last >= n_layers:
                raise UserError(f"{key}.{kind}: found {last}; the model's layers are 0 to {n_layers - 1}")


def skipping(model: PreTrainedModel, skipped: SkippedLayers) -> PreTrainedModel:
    """`model` without these sublayers: another object with the same weights and config. `model` stays as it is.

    Attentions that are kept have the layer index that they had, so that both models work on one KV cache, in which this
    one leaves the entries of the layers whose attention it skips alone. How it attends is set with the config, on
    `model`.

    Raises:
        UserError: the model lacks such layers, or its modules do more than their classes say, as those of a model that
            is spread over several devices do; what they do would be done to `model`.
    """
    skipped.check(model)
    if any("forward" in vars(module) for module in model.modules()):
        raise UserError("method: layers can't be left out of a model that is spread over devices; use one device")
    layers = nn.ModuleList()
    for index, layer in enumerate(model.base_model.layers):  # type: ignore[arg-type]
        is_left_out = {kind: index in skipped.of(kind) for kind in KINDS}
        if all(is_left_out.values()):
            layers.append(_SkippedLayer())  # in its place: the names of weights go by it, in compiled models too
            continue
        twin = _twin(layer)
        for kind, (sublayer, norm) in _MODULES.items():
            if is_left_out[kind]:
                twin.add_module(sublayer, _SkippedAttention() if kind == "attention" else _SkippedMlp())
                twin.add_module(norm, nn.Identity())
        layers.append(twin)
    body = _twin(model.base_model)
    body.add_module("layers", layers)
    whole = _twin(model)
    whole.add_module(model.base_model_prefix, body)
    return whole


def twin_of(model: PreTrainedModel, skipped: SkippedLayers) -> PreTrainedModel:
    """`skipping`, made once for each model and set, since a compiled model belongs to the object."""
    twins = _TWINS.setdefault(model, {})
    if skipped not in twins:
        twins[skipped] = skipping(model, skipped)
    return twins[skipped]


def n_weights_read(model: PreTrainedModel) -> int:
    """Weights that a pass over one row reads: all but the embedding's, of which it reads a line, and the head's."""
    head = model.get_output_embeddings()
    own = {id(parameter): parameter for parameter in [*model.base_model.parameters(), *head.parameters()]}
    embedding = model.get_input_embeddings().weight
    if embedding is not head.weight:
        del own[id(embedding)]
    return sum(parameter.numel() for parameter in own.values())


def _twin(module: Module) -> Module:
    """A module of its own with the same parameters and submodules."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin


class _SkippedLayer(nn.Module):
    """In the place of a layer of which nothing is left."""

    attention_type = "full_attention"  # some models look at their layers'; others than these aren't supported

    def forward(self, hidden_states: Tensor, **kwargs: object) -> Tensor:
        return hidden_states


class _SkippedAttention(nn.Module):
    """Adds nothing, and leaves no entries in the cache."""

    def forward(self, hidden_states: Tensor, **kwargs: object) -> tuple[Tensor, None]:
        return torch.zeros_like(hidden_states), None


class _SkippedMlp(nn.Module):
    """Adds nothing."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.zeros_like(hidden_states)
