"""Passkey retrieval: a number to find in text that says nothing, at a grid of lengths, depths and key sizes.

Source: the task of Mohtashami and Jaggi, "Landmark Attention: Random-Access Infinite Context Length for Transformers",
NeurIPS 2023, with its prompt; there the key has up to five digits and a random place. Prompts are made, not read.
"""

from eval.passkey.load import PasskeyParams, load
from eval.passkey.score import score
from eval.sample import Dataset

DATASET = Dataset(PasskeyParams, load, score)
