"""Spec-Bench: 480 questions of six tasks to measure speculative decoding with.

Source: Xia et al., "Unlocking Efficiency in Large Language Model Inference: A Comprehensive Survey of Speculative
Decoding", Findings of ACL 2024 (github.com/hemingkx/Spec-Bench). A sample's group is the question's category; eight
of the thirteen are MT-Bench's and together one task. `scripts/speedup/export_specbench.py` writes runs in the form that
Spec-Bench's own scripts read.
"""

from eval.sample import Dataset, EvalParams
from eval.specbench.load import load
from eval.specbench.score import score

DATASET = Dataset(EvalParams, load, score, needs_file=True)
