"""Which cache tokens are seen: one small file a method, and the registry of their config names."""

from pipeline.fafo.selectors.base import LayerView, Selector
from pipeline.fafo.selectors.fastgen import FastGen
from pipeline.fafo.selectors.fastkv import FastKV
from pipeline.fafo.selectors.full import Full
from pipeline.fafo.selectors.h2o import H2O
from pipeline.fafo.selectors.pyramidkv import PyramidKV
from pipeline.fafo.selectors.quest import Quest
from pipeline.fafo.selectors.snapkv import SnapKV
from pipeline.fafo.selectors.stream_llm import StreamLLM
from pipeline.fafo.selectors.tova import TOVA

SELECTORS: dict[str, type[Selector]] = {
    "full": Full,
    "stream-llm": StreamLLM,
    "quest": Quest,
    "snapkv": SnapKV,
    "pyramidkv": PyramidKV,
    "fastkv": FastKV,
    "fastgen": FastGen,
    "h2o": H2O,
    "tova": TOVA,
}

__all__ = [
    "H2O",
    "SELECTORS",
    "TOVA",
    "FastGen",
    "FastKV",
    "Full",
    "LayerView",
    "PyramidKV",
    "Quest",
    "Selector",
    "SnapKV",
    "StreamLLM",
]
