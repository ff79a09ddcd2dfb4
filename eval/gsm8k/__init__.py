"""GSM8K: grade-school word problems, each with one number for an answer.

Source: Cobbe et al., "Training Verifiers to Solve Math Word Problems", 2021; the 1,319 rows of its test split.
"""

from eval.gsm8k.load import Gsm8kParams, load
from eval.gsm8k.score import score
from eval.sample import Dataset

DATASET = Dataset(Gsm8kParams, load, score)
