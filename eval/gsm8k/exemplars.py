"""Worked problems to put before the question.

They are in the manner of the eight in Wei et al., "Chain-of-Thought Prompting Elicits Reasoning in Large Language
Models", 2022: steps in words with their sums, then the answer in a set form.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Exemplar:
    """A problem and its solution, whose last line is "The answer is N."."""

    question: str
    solution: str


EXEMPLARS = (
    Exemplar(
        "A bakery made 48 rolls in the morning and 36 in the afternoon. By closing time it had sold 71 of them. "
        "How many rolls were left?",
        "The bakery made 48 + 36 = 84 rolls in all.\nAfter 71 were sold, 84 - 71 = 13 rolls were left.\n"
        "The answer is 13.",
    ),
    Exemplar(
        "Nora reads 15 pages every evening. Her book has 240 pages, and she has read 90 of them already. "
        "How many more evenings does she need to finish it?",
        "Nora has 240 - 90 = 150 pages left.\nAt 15 pages an evening that takes 150 / 15 = 10 evenings.\n"
        "The answer is 10.",
    ),
    Exemplar(
        "A boat ride costs $12 for an adult and half as much for a child. "
        "How many dollars do two adults and three children pay together?",
        "A child's ride costs 12 / 2 = 6 dollars.\nThe adults pay 2 * 12 = 24 dollars.\n"
        "The children pay 3 * 6 = 18 dollars.\nTogether they pay 24 + 18 = 42 dollars.\nThe answer is 42.",
    ),
    Exemplar(
        "Felix planted 6 rows of 9 tulips. A storm broke a third of them. How many tulips are still standing?",
        "Felix planted 6 * 9 = 54 tulips.\nThe storm broke 54 / 3 = 18 of them.\n"
        "So 54 - 18 = 36 tulips are still standing.\nThe answer is 36.",
    ),
    Exemplar(
        "A tank is filled with 500 liters of water at noon. It loses 35 liters every hour. "
        "How many liters are in it at 4 p.m.?",
        "From noon to 4 p.m. there are 4 hours.\nThe tank loses 4 * 35 = 140 liters in that time.\n"
        "So 500 - 140 = 360 liters are in it.\nThe answer is 360.",
    ),
    Exemplar(
        "Ines works 25 hours a week for $14 an hour and saves 20% of what she earns. "
        "How many dollars does she save in 4 weeks?",
        "Ines earns 25 * 14 = 350 dollars a week.\nShe saves 350 * 0.2 = 70 dollars a week.\n"
        "In 4 weeks she saves 4 * 70 = 280 dollars.\nThe answer is 280.",
    ),
    Exemplar(
        "Omar is 3 years older than twice the age of his sister, who is 9. How old will Omar be in 5 years?",
        "Twice the sister's age is 2 * 9 = 18.\nOmar is 18 + 3 = 21 years old.\n"
        "In 5 years he will be 21 + 5 = 26 years old.\nThe answer is 26.",
    ),
    Exemplar(
        "A school buys 5 boxes of 24 pencils and deals them out equally to its 8 classes. "
        "Each class then lends 4 of its pencils to the library. How many pencils does each class keep?",
        "There are 5 * 24 = 120 pencils.\nEach class gets 120 / 8 = 15 of them.\n"
        "After lending 4, each class keeps 15 - 4 = 11 pencils.\nThe answer is 11.",
    ),
)
