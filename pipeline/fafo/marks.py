"""A letter for where an accepted token came from; `sources.py` tells how they are found out."""

MODEL = "m"  # the token that a step adds by itself
PROMPT, OUTPUT, WINDOW = "p", "o", "w"  # a guess that was read there
SUCCESSORS = "s"  # a guess that the model's own ranking at an earlier row made
DRAFT = "d"  # a guess that passes of the model made
TEXT = "t"  # not told apart yet: prompt, output or successors
