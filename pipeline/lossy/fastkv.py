"""FastKV whole: later layers read only the prompt's most salient tokens, and each layer keeps some of what it has."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from pipeline.errors import UserError
from pipeline.fafo.selectors.base import Choice, LayerView, Seen, count_of
from pipeline.fafo.selectors.fastkv import FastKV
from pipeline.fafo.selectors.scoring import top_positions


@dataclass(frozen=True, config={"extra": "forbid", "strict": True})
class TokenSelectivePropagation(FastKV):
    """FastKV with Token-Selective Propagation (TSP): prefill computes less, and decoding reads less.

    Layers 0 to `tsp_layer` read the whole prompt. Of its n tokens (all but the last, which the first step adds),
    round(`tsp_rate` * n) go on to the layers behind: those with the highest saliency in layer `tsp_layer`, summed over
    all heads, sinks and observation window always among them, in their order and at their original positions. The
    other tokens have no entries in these layers. What is then kept of a layer's entries is FastKV's choice in that
    layer: `kv_retention_rate` of n whatever `tsp_rate` is, or all that the layer has if that is less.

    tsp_layer: the last layer that reads the whole prompt; None is the middle, number of layers / 2 - 1.

    Source: Jo et al., "FastKV: Decoupling of Context Reduction and KV Cache Compression for Prefill-Decoding
    Acceleration", arXiv 2502.01068, and its code, dongwonjo/FastKV, which takes layer 15 of 32, 17 of 36 and 19 of 40
    with rates of 0.2 and 0.1.
    Deviations: those of `FastKV`, in both choices. The prompt's last token is not read with the others, so it is part
    neither of the observation window nor of n; as in the paper, it sees all that each layer has.
    Cost: that of `FastKV` per layer and prompt, and once more in layer `tsp_layer`; nothing per step. A layer behind
    that one reads the prompt with a share `tsp_rate` of the work in linear layers, and with its square in attention.
    """

    tsp_layer: Annotated[int, Field(ge=0)] | None = None
    tsp_rate: Annotated[float, Field(gt=0, le=1)] = 0.2
    whole_prompt: ClassVar[bool] = True
    only_lossy: ClassVar[bool] = True

    def check(self, config: PretrainedConfig) -> None:
        """Raise `UserError` if the model has no layer `tsp_layer`."""
        n_layers = config.num_hidden_layers
        if self.tsp_layer is not None and self.tsp_layer >= n_layers:
            raise UserError(
                f"tsp_layer: found {self.tsp_layer}, but the model has {n_layers} layers: "
                f"right are 0 to {n_layers - 1}, or null for the middle"
            )

    def last_full_layer(self, n_layers: int) -> int:
        """`tsp_layer`, for a model of so many layers."""
        return max(n_layers // 2 - 1, 0) if self.tsp_layer is None else self.tsp_layer

    def n_going_on(self, n: int) -> int:
        """How many of `n` tokens go on."""
        return min(n, max(count_of(self.tsp_rate, n), self.num_init + self.window_size))

    def rows_of_layers(self, n: int, n_layers: int) -> list[int]:
        """How many tokens each layer computes when `n` are read."""
        n_full = self.last_full_layer(n_layers) + 1
        return [n] * n_full + [self.n_going_on(n)] * (n_layers - n_full)

    def going_on(self, seen: Seen) -> Tensor:
        """Positions of the tokens that go on behind the layer that saw this, ascending, [n]."""
        saliency = self.saliency(seen).sum(dim=1, keepdim=True)  # groups are of one size: that of all heads, in order
        return top_positions(saliency, self.n_going_on(seen.keys.shape[2]))[0, 0]

    def observe(self, view: LayerView, seen: Seen) -> Choice:
        """Choose this layer's entries and, in layer `tsp_layer`, the tokens that go on. See `Selector.observe`."""
        if view.layer == self.last_full_layer(view.n_layers):
            view.memory = self.going_on(seen)
        n_read = len(view.text) - 1  # also where this layer has fewer
        return self.retain(seen, count_of(self.kv_retention_rate, n_read))

    @contextmanager
    def reading(self, model: PreTrainedModel, views: list[LayerView]) -> Iterator[None]:
        """Let the layers behind `tsp_layer` compute only the tokens that go on. See `Selector.reading`."""
        last_full = self.last_full_layer(len(views))
        layers_behind = list(model.base_model.layers)[last_full + 1 :]  # type: ignore[arg-type]

        def narrow(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            """Take the tokens that go on out of what a layer is given about each token, [1, rows, ..]."""

            def taken(given: Tensor) -> Tensor:
                return given.index_select(1, views[last_full].memory.to(given.device))

            if layer is layers_behind[0]:  # the others get their hidden states from it
                args = taken(args[0]), *args[1:]
            kwargs["position_embeddings"] = tuple(map(taken, kwargs["position_embeddings"]))
            if kwargs.get("position_ids") is not None:
                kwargs["position_ids"] = taken(kwargs["position_ids"])
            return args, kwargs

        with ExitStack() as hooks:
            for layer in layers_behind:
                hooks.callback(layer.register_forward_pre_hook(narrow, with_kwargs=True).remove)
            yield
