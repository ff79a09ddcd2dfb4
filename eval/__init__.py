"""Datasets by their config name: a folder with load.py and score.py, and a line here."""

from typing import Any

from eval import gsm8k, humaneval, longbench, longtext, mtbench, passkey, specbench
from eval.sample import Dataset, EvalParams, Sample

DATASETS: dict[str, Dataset[Any]] = {
    "gsm8k": gsm8k.DATASET,
    "humaneval": humaneval.DATASET,
    "longbench": longbench.DATASET,
    "longtext": longtext.DATASET,
    "mtbench": mtbench.DATASET,
    "passkey": passkey.DATASET,
    "specbench": specbench.DATASET,
}

__all__ = ["DATASETS", "Dataset", "EvalParams", "Sample"]
