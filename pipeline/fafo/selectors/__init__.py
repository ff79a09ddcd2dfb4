"""Which cache tokens the window branch sees: one small file a method, and the registry of their config names."""

from pipeline.fafo.selectors.base import LayerView, Selector
from pipeline.fafo.selectors.full import Full
from pipeline.fafo.selectors.quest import Quest
from pipeline.fafo.selectors.stream_llm import StreamLLM

SELECTORS: dict[str, type[Selector]] = {
    "full": Full,
    "stream-llm": StreamLLM,
    "quest": Quest,
}

__all__ = ["SELECTORS", "Full", "LayerView", "Quest", "Selector", "StreamLLM"]
