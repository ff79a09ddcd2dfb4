"""LongBench's metrics. Each compares an answer with one right answer and gives 0 to 1."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from rapidfuzz import fuzz
from rouge import Rouge

Metric = Callable[[str, str, Sequence[str]], float]  # the answer, the right one, the classes that there are

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_PARAGRAPH = re.compile(r"Paragraph (\d+)")
_ROUGE = Rouge(metrics=["rouge-l"], stats=["f"])


def qa_f1(answer: str, right: str, classes: Sequence[str] = ()) -> float:
    """F1 of the words in common, which count without case, punctuation and articles."""
    found, expected = Counter(_words(answer)), Counter(_words(right))
    return 2 * (found & expected).total() / ((found + expected).total() or 1)


def rouge_l(answer: str, right: str, classes: Sequence[str] = ()) -> float:
    """ROUGE-L's F1, over sentences, by the library that the published code takes; others differ in the details.

    Texts that it fails on get 0, as published: those without a sentence, and those with one of about a thousand words,
    which is too deep for its recursion.
    """
    try:
        return float(_ROUGE.get_scores([answer], [right])[0]["rouge-l"]["f"])
    except (ValueError, RecursionError):
        return 0.0


def classification(answer: str, right: str, classes: Sequence[str] = ()) -> float:
    """1 if of all classes only the right one is named, 1/n if it is among n, else 0.

    Classes that are part of the right one's name don't count. (The published code misses some of several such, but no
    name of TREC's is part of another.)
    """
    named = [name for name in classes if name in answer and (name == right or name not in right)]
    return named.count(right) / max(len(named), 1)


def retrieval(answer: str, right: str, classes: Sequence[str] = ()) -> float:
    """Of the numbers in the answer, the share that is the right paragraph's, which `right` names as "Paragraph 7"."""
    paragraph = _PARAGRAPH.search(right)
    return count(answer, paragraph[1]) if paragraph else 0.0


def count(answer: str, right: str, classes: Sequence[str] = ()) -> float:
    """Of the numbers in the answer, the share that is the right one."""
    numbers = re.findall(r"\d+", answer)
    return numbers.count(right) / max(len(numbers), 1)


def code_similarity(answer: str, right: str, classes: Sequence[str] = ()) -> float:
    """How much the answer's first line of code is like the right one: twice what they share, over both lengths.

    Lines with a backtick, # or // are no code. Rounded to percent, as fuzzywuzzy does, which the published code takes.
    (That is with python-Levenshtein installed. Without, fuzzywuzzy falls back on difflib, which finds less or as much.)
    """
    lines = answer.lstrip("\n").split("\n")
    code = next((line for line in lines if not re.search("[`#]|//", line)), "")
    return round(fuzz.ratio(code, right)) / 100


METRICS: dict[str, Metric] = {
    "qa_f1": qa_f1,
    "rouge_l": rouge_l,
    "classification": classification,
    "retrieval": retrieval,
    "count": count,
    "code_similarity": code_similarity,
}


def _words(text: str) -> list[str]:
    return _ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()
