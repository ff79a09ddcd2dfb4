"""HumanEval: 164 Python functions to complete.

Source: Chen et al., "Evaluating Large Language Models Trained on Code", 2021.
"""
