"""Scoring answers to the passkey question."""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from eval.passkey.load import PasskeyParams
from eval.sample import Sample, Scores

_DIGITS = re.compile("[0-9]+")
_SEPARATOR = re.compile("(?<=[0-9])[ ,-](?=[0-9])")  # of digits that are written in groups


def score(sample: Sample, answers: Sequence[str], params: PasskeyParams) -> Scores:
    """Whether the key was found, and how much of it.

    exact: 1 if the key is a whole run of digits in the answer, be it as written or once single spaces, commas and
        hyphens between two digits are left out; else 0.
    partial: the longest run of the key's digits that the answer has, anywhere in both, over the key's length. That is
        the partial match of longctx_bench (github.com/henryzhongsc/longctx_bench), but for the separators. A key's
        middle or end counts as its start does, since a compressed cache may lose any part. Any digit at all earns a
        share, so small values mean nothing for short keys.
    """
    key = sample.reference["key"]
    as_written = _DIGITS.findall(answers[0])
    joined = _DIGITS.findall(_SEPARATOR.sub("", answers[0]))
    return {
        "exact": float(key in as_written or key in joined),
        "partial": max((_longest_common(key, run) for run in joined), default=0) / len(key),
    }


def _longest_common(a: str, b: str) -> int:
    return SequenceMatcher(None, a, b, autojunk=False).find_longest_match().size
