"""MT-Bench: 80 questions of two turns, whose answers another model judges.

Source: Zheng et al., "Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena", 2023; questions, judge and the form of
the answers are those of FastChat's `fastchat.llm_judge`.

Deviation: FastChat samples the answers, with a temperature of up to 0.7 that depends on the category. Here they are
decoded greedily, so that two runs can be compared token by token.
"""

from eval.mtbench.answers import write_answers
from eval.mtbench.load import load
from eval.mtbench.score import score
from eval.sample import Dataset, EvalParams

DATASET = Dataset(EvalParams, load, score, write_answers)
