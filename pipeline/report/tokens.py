"""The text of each token of an output, so that one after the other they are the output's text."""

from collections.abc import Sequence

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from pipeline.common.encoding import decode
from pipeline.common.paths import from_root


def load_tokenizer(model_name: str) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a recorded model: from its folder or the hub's cache on this machine; None if it isn't there."""
    try:
        folder = from_root(model_name)
        return AutoTokenizer.from_pretrained(str(folder) if folder.is_dir() else model_name, local_files_only=True)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ImportError, RuntimeError):
        return None  # the page can do without, and says so


def token_texts(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int], answer: str) -> list[str] | None:
    """Divide what `token_ids` decode to among the tokens; None if it does not begin with `answer`, as it should.

    A character that several tokens spell is the last one's text, and the others have none. Nor have special tokens.
    """

    def between(start: int, end: int) -> str:
        return decode(tokenizer, token_ids[start:end], skip_special_tokens=True)

    text = between(0, len(token_ids))
    if not text.startswith(answer):
        return None
    texts = [""] * len(token_ids)
    # Tokens that have their text are decoded with those behind them, since decoders treat the start of a text
    # differently. A few are enough as a rule, and where they mislead, all of them tell.
    start, known, before = 0, 0, ""
    n_shown = 0  # characters of `text` that have their token
    for end in range(1, len(token_ids) + 1):
        after = between(start, end)
        added = after.removeprefix(before)
        if not after.startswith(before) or not text.startswith(added, n_shown):
            start, before = 0, text[:n_shown]  # part of a character: decoders write U+FFFD where `text` has another
        elif added:
            texts[end - 1] = added
            n_shown += len(added)
            start, known = known, end
            before = between(start, end)
    if texts:
        texts[-1] += text[n_shown:]
    return texts
