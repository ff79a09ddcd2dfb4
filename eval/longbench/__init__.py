"""LongBench: 16 tasks in English and code over long contexts, from question answering to summaries.

Source: Bai et al., "LongBench: A Bilingual, Multitask Benchmark for Long Context Understanding", 2024
(arXiv:2308.14508). Its Chinese subsets and LongBench-E are left out.
"""

from eval.longbench.load import LongBenchParams, load
from eval.longbench.score import score
from eval.sample import Dataset

DATASET = Dataset(LongBenchParams, load, score)
