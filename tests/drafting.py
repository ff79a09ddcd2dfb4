"""All drafters, to be drawn or gone through, and the configs of their pipelines."""

from typing import Any

from hypothesis import strategies as st

from pipeline.common.schemas import METHODS, PlannedParams
from pipeline.fafo.drafter import Drafter
from pipeline.fafo.selectors import H2O, Full, Quest, SnapKV, StreamLLM
from pipeline.fafo.settings import DecodeSettings
from pipeline.prompt_lookup.lookup import PromptLookup
from pipeline.selfspec_kv.draft import CompressedDraft
from pipeline.selfspec_layers.draft import LayerSkip
from pipeline.selfspec_layers.skipping import SkippedLayers
from pipeline.token_recycling.recycling import TokenRecycling
from tests.selecting import any_selector

# A setting of each kind, small enough for tiny models.
WAYS: dict[str, dict[str, Any]] = {
    "prompt lookup": {"drafter": PromptLookup(6, 3)},
    "token recycling": {"drafter": TokenRecycling(4, 20)},
    "full": {"drafter": CompressedDraft(3), "selector": Full()},
    "stream-llm": {"drafter": CompressedDraft(4), "selector": StreamLLM(2, 6)},
    "quest": {"drafter": CompressedDraft(5), "selector": Quest(3, 2, 3)},
    "snapkv": {"drafter": CompressedDraft(2), "selector": SnapKV(6, 2, 3)},
    "h2o": {"drafter": CompressedDraft(3), "selector": H2O(6, 0.5, 2)},
    "sublayers": {"drafter": LayerSkip(3, SkippedLayers(attention=(0,), mlp=(0, 1)))},
}
MODEL_WAYS = {name: way for name, way in WAYS.items() if isinstance(way["drafter"], CompressedDraft | LayerSkip)}
_PLANNED = tuple(schema.drafter for schema in METHODS.values() if schema.drafter and issubclass(schema, PlannedParams))

# Of each pipeline with which FAFO is compared, its keys beside those of all methods.
OPPONENTS: dict[str, dict[str, Any]] = {
    "lookahead": {"level": 3, "window": 3, "num_guesses": 2},
    "prompt_lookup": {"prompt_lookup_num_tokens": 5, "max_matching_ngram_size": 2},
    "token_recycling": {"n_successors": 4, "n_tree_rows": 12},
    "selfspec_kv": {"kv_method": "stream-llm", "gamma": 3, "num_init": 2, "num_local": 8},
    "selfspec_layers": {"gamma": 3, "n_trials": 4, "n_search_tokens": 8},
}

layers_of_two = st.sampled_from([(), (0,), (1,), (0, 1)])
any_drafter: st.SearchStrategy[Drafter] = st.one_of(
    st.builds(PromptLookup, st.integers(1, 12), st.integers(1, 4)),
    st.builds(TokenRecycling, st.integers(1, 8), st.integers(1, 80)),
    st.builds(CompressedDraft, st.integers(1, 6)),
    st.builds(LayerSkip, st.integers(1, 6), st.builds(SkippedLayers, attention=layers_of_two, mlp=layers_of_two)),
)


@st.composite
def drafted(draw: Any, **values: st.SearchStrategy[Any]) -> DecodeSettings:
    """Settings with any drafter; the others are drawn from `values`. The planner is the method's to choose, if it may.

    values: of `DecodeSettings`; step_times: for planner "auto".
    """
    drafter = draw(any_drafter)
    drawn = {name: draw(strategy) for name, strategy in values.items()}
    if drafter.uses_views:
        drawn["selector"] = draw(any_selector)
    if isinstance(drafter, _PLANNED):
        drawn["planner"] = draw(st.sampled_from(["fixed", "auto"]))
    return DecodeSettings(drafter=drafter, **drawn)
