"""The README's example of a selector of one's own does what it says."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.common.paths import REPO_ROOT
from pipeline.fafo.decode import generate
from pipeline.fafo.selectors.named import selector_named
from pipeline.fafo.settings import DecodeSettings
from tests.tiny import greedy, tiny_model


@pytest.fixture
def my_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    text = (REPO_ROOT / "README.md").read_text(encoding="utf-8")
    section = text[text.index("## Adding a selector") :]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert code is not None
    (tmp_path / "my_module.py").write_text(code[1], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_module", None)


@pytest.mark.usefixtures("my_module")
def test_a_selector_of_ones_own_is_named_like_ours() -> None:
    model, prompt = tiny_model("llama-gqa-tied"), [3, 1, 4, 1, 5, 9, 2, 6] * 4
    selector = selector_named("my_module:EveryOther")(stride=3, update_interval=2)  # type: ignore[call-arg]
    settings = DecodeSettings(30, level=4, window=5, num_guesses=5, selector=selector)

    got = generate(model, prompt, settings)

    assert got.token_ids == greedy(model, prompt, 30)
    assert got.window_cache_tokens is not None and got.cache_tokens_beside_window is not None
    assert got.window_cache_tokens < 0.5 * got.cache_tokens_beside_window
