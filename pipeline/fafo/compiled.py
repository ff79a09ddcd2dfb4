"""The model compiled: the same forward pass with far less overhead and, on CPUs, far faster matrix products.

Attention stays the one operator `fafo::attention`, so a graph fits every step: any cache length, selector and mask.

- CPUs: an AOTInductor package for all numbers of rows, its weights packed for small matrix products (with a few rows
  these run at memory bandwidth, where PyTorch's own reach a third of it). Made once, minutes; kept on disk under a hash
  of weights, shapes, threads and versions, and loaded in a second. A package is as large as the model.
- CUDA: `torch.compile` with CUDA graphs between the attention operators, for rows padded to `ROW_BUCKETS`.
"""

import hashlib
import logging
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import torch
import transformers
from filelock import FileLock
from platformdirs import user_cache_path
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel

from pipeline.device_name import device_name
from pipeline.fafo import attention
from pipeline.fafo.attention import fafo_attention_on

log = logging.getLogger(__name__)

ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)
MOST_ROWS = ROW_BUCKETS[-1]  # larger steps run uncompiled
LEAST_ROWS = 2  # on CPUs: a dimension of 1 would not be dynamic; a second row costs a few percent
TUNED_FOR = 8  # rows, on CPUs

LogitsOf = Callable[[Tensor, Tensor, Tensor], Tensor]  # ids and positions [1, rows], logit rows [n] -> [n, vocabulary]
_COMPILED: WeakKeyDictionary[PreTrainedModel, tuple[object, LogitsOf | None]] = WeakKeyDictionary()


def compiled(model: PreTrainedModel) -> LogitsOf | None:
    """The model's forward pass for up to `MOST_ROWS` rows; None, with a warning, where it can't be compiled."""
    state = _state(model)  # a graph holds the weights as they were
    if model not in _COMPILED or _COMPILED[model][0] != state:
        with fafo_attention_on(model):  # threads take turns here before processes do at the file
            _COMPILED[model] = state, _compile(model)
    return _COMPILED[model][1]


def _state(model: PreTrainedModel) -> object:
    """Changes whenever a weight is changed, moved or replaced."""
    return [
        (p.data_ptr(), 0 if p.is_inference() else p._version, p.dtype, p.device, p.shape) for p in model.parameters()
    ]


def _compile(model: PreTrainedModel) -> LogitsOf | None:
    ways = {"cpu": _for_cpu, "cuda": _for_cuda}
    if model.device.type not in ways or len(set(getattr(model, "hf_device_map", {}).values())) > 1:
        log.warning("compile: the model is not on one CPU or CUDA device as a whole, so it runs uncompiled")
        return None
    try:
        return ways[model.device.type](model)
    except Exception as error:  # of many kinds, from graph capture to the C++ compiler and the disk
        first_line = next(iter(str(error).splitlines()), "")
        log.warning("compile: failed, so the model runs uncompiled (%s: %s)", type(error).__name__, first_line)
        return None


class _Rows(nn.Module):
    """From embedded rows to logits. The embedding stays outside: it would only make packages larger."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.body = model.base_model
        self.head = model.get_output_embeddings()

    def forward(self, embedded: Tensor, positions: Tensor, logit_rows: Tensor) -> Tensor:
        hidden = self.body(inputs_embeds=embedded, position_ids=positions, use_cache=False).last_hidden_state
        return self.head(hidden[0, logit_rows])


def _padded_call(model: PreTrainedModel, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`function` with rows and logit rows padded to the given numbers."""
    embedding: Any = model.get_input_embeddings()

    def call(ids: Tensor, positions: Tensor, logit_rows: Tensor, n_rows: int, n_logit_rows: int) -> Tensor:
        n_logits = len(logit_rows)
        more = (0, n_rows - ids.shape[1])
        embedded = embedding(pad(ids, more))
        return function(embedded, pad(positions, more), pad(logit_rows, (0, n_logit_rows - n_logits)))[:n_logits]

    return call


def _for_cuda(model: PreTrainedModel) -> LogitsOf:
    rows = torch.compile(
        _Rows(model),
        fullgraph=True,
        dynamic=False,
        options={
            "triton.cudagraphs": True,
            "graph_partition": True,
            "custom_should_partition_ops": ["fafo::attention"],  # type: ignore[dict-item]
        },
    )
    call = _padded_call(model, rows)

    def logits_of(ids: Tensor, positions: Tensor, logit_rows: Tensor) -> Tensor:
        bucket = next(bucket for bucket in ROW_BUCKETS if bucket >= ids.shape[1])
        with torch._dynamo.config.patch(recompile_limit=len(ROW_BUCKETS)):  # one graph a bucket, not 8 at most
            return call(ids, positions, logit_rows, bucket, bucket)

    return logits_of


def _for_cpu(model: PreTrainedModel) -> LogitsOf | None:
    compiler = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    if shutil.which(compiler[0]) is None:
        log.warning("compile: there is no C++ compiler %s here, so the model runs uncompiled; install g++", compiler[0])
        return None
    path = user_cache_path("fafo") / "compiled" / f"{_fingerprint(model)}.pt2"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        package = _load(path) if path.exists() else None
        if package is None:
            _build(model, path)
            package = torch._inductor.aoti_load_package(str(path))
    call = _padded_call(model, package)

    def logits_of(ids: Tensor, positions: Tensor, logit_rows: Tensor) -> Tensor:
        return call(ids, positions, logit_rows, max(ids.shape[1], LEAST_ROWS), max(len(logit_rows), LEAST_ROWS))

    return logits_of


def _load(path: Path) -> Callable[..., Tensor] | None:
    started = perf_counter()
    try:
        package = torch._inductor.aoti_load_package(str(path))
    except Exception as error:  # whatever a damaged file leads to
        log.warning("compile: %s can't be used (%s: %s); compiling anew", path, type(error).__name__, error)
        return None
    log.info("compile: loaded the compiled model in %.1f s", perf_counter() - started)
    return package


def _build(model: PreTrainedModel, path: Path) -> None:
    log.info("compile: compiling the model for this machine, once; this takes some minutes, and then lies in %s", path)
    started = perf_counter()
    rows, logit_rows = (torch.export.Dim(name, min=LEAST_ROWS, max=MOST_ROWS) for name in ("rows", "logit_rows"))
    example = (
        model.get_input_embeddings()(torch.zeros(1, TUNED_FOR, dtype=torch.long)),
        torch.zeros(1, TUNED_FOR, dtype=torch.long),
        torch.zeros(TUNED_FOR - 1, dtype=torch.long),
    )
    options = {
        "freezing": True,
        "max_autotune": True,
        "max_autotune_gemm_backends": "CPP",  # PyTorch's own may win for `TUNED_FOR` rows, but not for few
        "autotune_num_choices_displayed": 0,
    }
    # Packed weights of mkldnn would take the place of the templates for few rows, and can't be saved.
    with fafo_attention_on(model), torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        program = torch.export.export(
            _Rows(model), example, dynamic_shapes=({1: rows}, {1: rows}, {0: logit_rows}), strict=False
        )
        for left_over in path.parent.glob(f"{path.stem}-*"):  # by a build that was killed
            shutil.rmtree(left_over)
        with TemporaryDirectory(dir=path.parent, prefix=f"{path.stem}-") as folder:
            built = Path(folder) / path.name
            torch._inductor.aoti_compile_and_package(program, package_path=str(built), inductor_configs=options)
            built.replace(path)
    log.info("compile: done in %.0f s", perf_counter() - started)


def _fingerprint(model: PreTrainedModel) -> str:
    """Tells apart all that a package depends on."""
    digest = hashlib.sha256()
    facts = (
        torch.__version__,
        transformers.__version__,
        device_name(model.device),
        torch.get_num_threads(),
        {name: value for name, value in model.config.to_dict().items() if not name.startswith("_")},
        [Path(file).read_text() for file in (__file__, attention.__file__)],
    )
    digest.update(repr(facts).encode())
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        digest.update(parameter.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]
