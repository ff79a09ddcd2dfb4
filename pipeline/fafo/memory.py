"""How much memory Python objects and tensors hold."""

import gc
import sys
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor

_SHARED = (type, ModuleType, FunctionType)  # with what they refer to


def held_bytes(things: Iterable[Any], besides: Iterable[Tensor] = ()) -> int:
    """Bytes of what can be reached from `things`, each object and each tensor's memory once.

    besides: tensors whose memory is not counted, such as a cache that `things` have views of.
    """
    storages = {tensor.untyped_storage().data_ptr() for tensor in besides}
    seen: set[int] = set()
    n_bytes = 0
    left = list(things)
    while left:
        thing = left.pop()
        if id(thing) in seen or isinstance(thing, _SHARED):
            continue
        seen.add(id(thing))
        n_bytes += sys.getsizeof(thing)
        if not isinstance(thing, Tensor):
            left += gc.get_referents(thing)
        elif thing.untyped_storage().data_ptr() not in storages:
            storages.add(thing.untyped_storage().data_ptr())
            n_bytes += thing.untyped_storage().nbytes()
    return n_bytes
