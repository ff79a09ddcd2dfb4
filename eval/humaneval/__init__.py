"""HumanEval: 164 Python functions to complete.

Source: Chen et al., "Evaluating Large Language Models Trained on Code", 2021.

The metric is `pass@1`, from one answer a problem, where the eval config lets generated code be executed, else `parses`.
"""

from eval.humaneval.load import HumanEvalParams, load
from eval.humaneval.score import score
from eval.sample import Dataset

DATASET = Dataset(HumanEvalParams, load, score)
