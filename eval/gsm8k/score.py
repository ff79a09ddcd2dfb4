"""Scoring GSM8K answers by their final number."""

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal

from eval.gsm8k.load import Gsm8kParams
from eval.gsm8k.number import NUMBER, number_of
from eval.sample import Sample, Scores

_THOUGHTS_END = "</think>"
_NEXT_QUESTION = re.compile(r"(?<=\w)\W+Question:")  # behind some text: an answer may start by repeating its own
_LATEX = (
    (re.compile(r"\\(?:times|cdot|div)(?![a-z])"), "*"),
    (re.compile(r"(?<=\d)(?=\\[dt]?frac\b)"), " "),
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"\1/\2"),
    (re.compile(r"(?<=\d)(?:\{,\}|\\[,;!]|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))"), ","),  # between thousands
)
_AROUND = r"[\s*_:=~\u2248\"'`$€£\\(\[{]*"  # what Markdown, LaTeX and currencies put before a number
_HEADING = rf"{_AROUND}\d+[.):][ \t]+\w"  # such as "#### 2. The eggs"
_ANSWER = (  # but not "the answer as a percentage: 32 / 96" or "the answer is found by adding 3 and 4"
    r"\banswer\b(?:[^.,:=\d\n]{0,40}?\b(?:is|equals)\b(?:\s{1,3}[a-z]+\.?){0,2}"
    r"|[\s*_]{0,5}(?:\([^)\d\n]{0,30}\)[\s*_]{0,5})?[:=])"
)
_MARK = re.compile(rf"(?:####(?!{_HEADING})|{_ANSWER}){_AROUND}(?={NUMBER.pattern})", re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_LONGEST_BOX = 100  # characters; longer ones were never closed
# Of "the answer is 16 eggs - 7 eggs = 9 eggs", all that is between "is" and 9, in one clause.
_SUM = re.compile(r"(?:[^\n.,;:!?]|[.,](?=\d))*=[ \t*$€£\\]*")


def score(sample: Sample, answers: Sequence[str], params: Gsm8kParams) -> Scores:
    """Whether the answer's final number is the problem's; 18 and 18.00 are one number."""
    return {"exact_match": float(final_number(answers[0]) == Decimal(sample.reference["answer"]))}


def final_number(answer: str) -> Decimal | None:
    r"""The number that an answer ends with, or None.

    It is the last one that is marked as such (`#### 18`, `\boxed{18}`, "the answer is 18", "Answer: 18"), else the last
    one of all. Of a sum, it is what stands behind the equals sign. Signs of currencies, units and percents are left
    out. What is written like a number but is not one (12:30, 1,2,3) is no answer, and nothing else is taken for it.
    """
    text = _readable(answer)
    marked = [mark.end() for mark in _MARK.finditer(text)] + list(_boxed(text))
    if marked:
        found = _behind_sum(text, max(marked)) or NUMBER.match(text, max(marked))
    else:
        *_, found = [None, *NUMBER.finditer(text)]
    return number_of(found) if found else None


def _readable(answer: str) -> str:
    """The answer alone, without thoughts before and further questions behind it, and with less LaTeX."""
    text = answer.rpartition(_THOUGHTS_END)[2]
    text = _NEXT_QUESTION.split(text, maxsplit=1)[0]
    for pattern, plain in _LATEX:
        text = pattern.sub(plain, text)
    return text


def _boxed(text: str) -> Iterator[int]:
    """Where the first number of each box starts."""
    for box in _BOX.finditer(text):
        if number := NUMBER.search(text, box.end(), _box_end(text, box.end())):
            yield number.start()


def _box_end(text: str, start: int) -> int:
    n_open = 1
    for i, character in enumerate(text[start : start + _LONGEST_BOX], start=start):
        n_open += {"{": 1, "}": -1}.get(character, 0)
        if not n_open:
            return i
    return min(start + _LONGEST_BOX, len(text))


def _behind_sum(text: str, start: int) -> re.Match[str] | None:
    found = _SUM.match(text, start)
    return NUMBER.match(text, found.end()) if found else None
