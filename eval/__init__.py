"""Datasets by their config name: a folder with load.py and score.py, and a line here."""

from typing import Any

from eval import gsm8k, humaneval, longbench, mtbench, passkey
from eval.sample import Dataset, EvalParams, Sample

DATASETS: dict[str, Dataset[Any]] = {
    "gsm8k": gsm8k.DATASET,
    "humaneval": humaneval.DATASET,
    "longbench": longbench.DATASET,
    "mtbench": mtbench.DATASET,
    "passkey": passkey.DATASET,
}

__all__ = ["DATASETS", "Dataset", "EvalParams", "Sample"]
