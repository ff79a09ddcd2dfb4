"""Long texts to summarize, at given lengths: how a method's speed depends on the length of the prompt.

No benchmark of its own: the texts are CNN/DailyMail's articles (See et al., "Get To The Point: Summarization with
Pointer-Generator Networks", ACL 2017), or those of a file, joined and cut to the length asked for.
"""

from eval.longtext.load import LongTextParams, load
from eval.longtext.score import score
from eval.sample import Dataset

DATASET = Dataset(LongTextParams, load, score)
