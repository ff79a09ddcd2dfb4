"""Datasets by their config name: a folder with load.py and score.py, and a line here."""

from eval.humaneval.load import load as load_humaneval
from eval.humaneval.score import parses
from eval.sample import Dataset, Sample

DATASETS: dict[str, Dataset] = {
    "humaneval": Dataset(load=load_humaneval, score=parses, metric="parses"),
}

__all__ = ["DATASETS", "Dataset", "Sample"]
