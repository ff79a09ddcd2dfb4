"""The score-based presses of kvpress as selectors: `"kv_method": "kvpress:SnapKVPress"`.

kvpress (https://github.com/NVIDIA/kvpress) is an optional package, imported when one of its presses is named.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import Annotated, Any, ClassVar, get_type_hints

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from pipeline.errors import UserError, suggest
from pipeline.fafo.cache import layer_devices
from pipeline.fafo.selectors.base import Choice, LayerView, Seen, Selector
from pipeline.fafo.selectors.scoring import KernelSize, top_positions

_INSTALL = "run pip install kvpress==0.5.5"
# The presses that can be named, each with the fields whose sum a prompt must exceed to be scored.
SUPPORTED: dict[str, tuple[str, ...]] = {
    "CapPress": ("n_sink",),
    "CompactorPress": ("sink_size_start", "sink_size_end"),
    "CURPress": (),
    "ExpectedAttentionPress": ("n_sink",),
    "KeyDiffPress": (),
    "KnormPress": (),
    "LagKVPress": (),
    "LeverageScorePress": (),
    "NonCausalAttnPress": (),
    "PyramidKVPress": ("window_size",),
    "RandomPress": (),
    "SnapKVPress": ("window_size",),
    "StreamingLLMPress": ("n_sink",),
    "TOVAPress": (),
}
# Why the others can't.
REFUSED: dict[str, str] = {
    **dict.fromkeys(["BasePress", "ScorerPress"], "is no method, but what presses are derived from"),
    **dict.fromkeys(
        [
            "AdaKVPress",
            "BlockPress",
            "ChunkKVPress",
            "ChunkPress",
            "ComposedPress",
            "CriticalAdaKVPress",
            "CriticalKVPress",
            "DMSPress",
            "EntropyGatedChunkKVPress",
            "KeyRerotationPress",
            "MergingPress",
            "PerLayerCompressionPress",
        ],
        "wraps another press, which it would have to be given",
    ),
    **dict.fromkeys(
        ["CAMPress", "CompressionRatioDecodingPress", "DecodingPress", "PrefillDecodingPress"],
        "wraps another press, and drops tokens of the output, which are always kept here",
    ),
    **dict.fromkeys(
        [
            "ExpectedAttentionStatsPress",
            "FastKVzipPress",
            "KVzapPress",
            "LUKVPress",
            "QFilterPress",
            "RestoreKVPress",
        ],
        "needs weights or statistics made for the model, which kvpress downloads for a few",
    ),
    "DuoAttentionPress": "needs patterns of the model's heads, which kvpress downloads for a few, and has no scores",
    **dict.fromkeys(
        ["KVComposePress", "KVgradPress", "KVzipPress"], "runs the model over the prompt more than once"
    ),
    "FinchPress": "needs a delimiter token of its own in the prompt",
    "ObservedAttentionPress": "needs the attention weights of the whole prompt, which are never in memory at once",
    "SimLayerKVPress": "has no scores: it drops the same tokens of some layers and none of the others",
    "ThinKPress": "drops channels of the keys, not tokens",
}  # fmt: skip


@dataclass(frozen=True, config={"extra": "forbid", "strict": True})
class KVPress(Selector):
    """The prompt's tokens that a press of kvpress would keep, per KV head; see `press_selector` for its subclasses.

    The hyperparameters are those of the press's constructor, with its names and defaults; `compression_ratio`, the
    share of the prompt that is dropped, is 0.0 unless given. The press scores the prompt, all but its last token, from
    its hidden states, keys and values, once a layer has read it; the tokens with the highest scores stay, as many as
    kvpress keeps of that many. A prompt too short for the press to score, since it is no longer than what the press
    always keeps (sinks, a window), stays whole. All later tokens are visible too.

    seed: of what a press draws, if it draws anything; in a config it is the run's.

    Source: Devoto et al., "Expected Attention: KV Cache Compression by Estimating Attention from Future Queries
    Distribution", arXiv 2510.00636, and its code; what a press computes is described there.
    Deviations: none in what is kept of a given text.
    Cost: what the press computes, once per prompt and layer, and a copy of what is kept; nothing per step.
    """

    press_class: ClassVar[Any]
    whole_prompt: ClassVar[bool] = True  # presses see hidden states, which no cache has

    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42

    def observe(self, view: LayerView, seen: Seen) -> Choice:
        """Let the press score the prompt. See `Selector.observe`."""
        press, hidden_states, position_embeddings = view.memory
        view.memory = None
        n = seen.keys.shape[2]
        n_kept = _n_kept(press, seen.module, n)
        if n_kept == n or n <= sum(getattr(self, name) for name in SUPPORTED[type(self).__name__]):
            return [slice(0, n)]
        others = {"position_embeddings": position_embeddings}  # all that these presses take of attention's arguments
        scores = press.score(seen.module, hidden_states, seen.keys, seen.values, None, others)
        return top_positions(scores, n_kept)

    @contextmanager
    def reading(self, model: PreTrainedModel, views: list[LayerView]) -> Iterator[None]:
        """Note what goes into each layer's attention, and lend presses what they look for there."""
        ours = {field.name: getattr(self, field.name) for field in fields(self)}
        of_press = {f.name for f in fields(self.press_class)} - {"seed"}  # with one, all layers would draw the same
        press = self.press_class(**{name: value for name, value in ours.items() if name in of_press})
        press.post_init_from_model(model)

        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            view = views[module.layer_idx]  # type: ignore[index]  # every attention module has one
            view.memory = press, kwargs["hidden_states"], kwargs["position_embeddings"]

        body: Any = model.base_model
        # A copy: some rotary embeddings change for good when they are asked for positions far ahead, as presses do.
        rotary_emb = deepcopy(body.rotary_emb)
        with ExitStack() as undone_after, _seeded(model, self.seed):
            for layer in body.layers:
                undone_after.callback(layer.self_attn.register_forward_pre_hook(note, with_kwargs=True).remove)
                undone_after.enter_context(_lent(layer.self_attn, "rotary_emb", rotary_emb))
            yield


def _n_kept(press: Any, module: nn.Module, n: int) -> int:
    """How many of `n` tokens the press keeps in the layer of this attention module."""
    if hasattr(press, "get_layer_budget"):
        return press.get_layer_budget(module, n)
    return import_module("kvpress.utils").compute_n_kept(n, press.compression_ratio)


@contextmanager
def _lent(module: nn.Module, name: str, value: nn.Module) -> Iterator[None]:
    before = getattr(module, name, None)
    setattr(module, name, value)
    try:
        yield
    finally:
        if before is None:
            delattr(module, name)
        else:
            setattr(module, name, before)


@contextmanager
def _seeded(model: PreTrainedModel, seed: int) -> Iterator[None]:
    """Random numbers of this seed inside; outside they go on as if nothing had been drawn."""
    devices = list({device for device in layer_devices(model) if device.type == "cuda"})
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)
        for device in devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


@cache
def press_selector(name: str) -> type[KVPress]:
    """The selector class of a press, such as "SnapKVPress": a pydantic dataclass with the press's own fields.

    Raises:
        UserError: no press of this name can be used, or kvpress can't be imported; it says why.
    """
    if name in REFUSED:
        raise UserError(f"it {REFUSED[name]}")
    if name not in SUPPORTED:
        raise UserError(f"it is no press{suggest(name, SUPPORTED)}")
    press_class = getattr(_kvpress(), name, None)
    if press_class is None:
        raise UserError(f"kvpress {version('kvpress')}, which is here, has no such press: {_INSTALL}")
    hints = get_type_hints(press_class)
    taken = [f for f in fields(press_class) if f.init and f.name[0] != "_" and f.name not in KVPress.__annotations__]
    namespace = {
        "__doc__": f"What {name} of kvpress keeps. See `KVPress`.",
        "__module__": __name__,
        "__annotations__": {field.name: _bounded(field.name, hints[field.name]) for field in taken},
        "press_class": press_class,
        **{field.name: field.default for field in taken},
    }
    as_selector: Any = dataclass(frozen=True, config={"extra": "forbid", "strict": True})
    return as_selector(type(name, (KVPress,), namespace))


def _bounded(name: str, kind: Any) -> Any:
    """The type of a press's field, without the values with which the press would fail, or do nonsense, later on."""
    if name == "compression_ratio":
        return Annotated[float, Field(ge=0, lt=1)]
    if name == "kernel_size":
        return KernelSize
    if kind is int:
        return Annotated[int, Field(ge=0 if "sink" in name else 1, le=2**20)]
    if kind in (float, float | None):
        return Annotated[kind, Field(ge=0, allow_inf_nan=False)]
    return kind


def _kvpress() -> ModuleType:
    """kvpress, without what its import does to the rest of the process.

    It wraps all of transformers' attention functions, ours too, for presses that drop tokens head by head (`AdaKVPress`
    and such, none of which can be used here). Models are to run as they would without it, so the wrappers are taken off
    again; whoever uses those presses in the same process calls kvpress's `patch_attention_functions`, or imports
    kvpress first: then nothing is undone.
    """
    before = dict(ALL_ATTENTION_FUNCTIONS)
    try:
        return import_module("kvpress")
    except Exception as error:  # whatever a version of it makes of the other packages' versions
        if isinstance(error, ModuleNotFoundError) and error.name == "kvpress":
            raise UserError(f"it needs kvpress: {_INSTALL}") from None
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(f"it needs kvpress, which can't be imported: {reason}") from None
    finally:
        for name, function in before.items():
            if ALL_ATTENTION_FUNCTIONS[name] is not function:
                del ALL_ATTENTION_FUNCTIONS[name]  # now it is again what is registered, unless that was overridden
            if ALL_ATTENTION_FUNCTIONS.get(name) is not function:
                ALL_ATTENTION_FUNCTIONS[name] = function
