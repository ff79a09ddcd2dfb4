"""The 16 English and code subsets: prompts, lengths and metrics, as the benchmark prescribes them.

Source of the constants: github.com/THUDM/LongBench, dataset2prompt.json, dataset2maxlen.json, pred.py and eval.py. The
prompts stand here letter by letter, slips of the pen included ("asconcisely"): scores are comparable only with these.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Subset:
    """How one subset is asked and scored.

    prompt: with places for {context} and {input}.
    n_new_tokens: most tokens of an answer.
    metric: which one, a key of `metrics.METRICS`.
    as_chat: whether models with a chat template get the prompt through it, or as plain text like all others.
    first_line: whether only the answer's first line is scored.
    """

    prompt: str
    n_new_tokens: int
    metric: str
    as_chat: bool = True
    first_line: bool = False


_NARRATIVEQA = (
    "You are given a story, which can be either a novel or a movie script, and a question. Answer the question "
    "asconcisely as you can, using a single phrase if possible. Do not provide any explanation.\n\nStory: {context}\n\n"
    "Now, answer the question based on the story asconcisely as you can, using a single phrase if possible. Do not "
    "provide any explanation.\n\nQuestion: {input}\n\nAnswer:"
)
_QASPER_RULES = (
    "as concisely as you can, using a single phrase or sentence if possible. If the question cannot be answered based "
    'on the information in the article, write "unanswerable". If the question is a yes/no question, answer "yes", '
    '"no", or "unanswerable". Do not provide any explanation.\n\n'
)
_QASPER = (
    f"You are given a scientific article and a question. Answer the question {_QASPER_RULES}Article: {{context}}\n\n"
    f" Answer the question based on the above article {_QASPER_RULES}Question: {{input}}\n\nAnswer:"
)
_MULTIFIELDQA = (
    "Read the following text and answer briefly.\n\n{context}\n\nNow, answer the following question based on the above "
    "text, only give me the answer and do not output any other words.\n\nQuestion: {input}\nAnswer:"
)
_PASSAGES_RULES = (
    "Answer the question based on the given passages. Only give me the answer and do not output any other words.\n\n"
)
_PASSAGES = (
    f"{_PASSAGES_RULES}The following are given passages.\n{{context}}\n\n{_PASSAGES_RULES}Question: {{input}}\nAnswer:"
)
_GOV_REPORT = (
    "You are given a report by a government agency. Write a one-page summary of the report.\n\nReport:\n{context}\n\n"
    "Now, write a one-page summary of the report.\n\nSummary:"
)
_QMSUM = (
    "You are given a meeting transcript and a query containing a question or instruction. Answer the query in one or "
    "more sentences.\n\nTranscript:\n{context}\n\nNow, answer the query based on the above meeting transcript in one "
    "or more sentences.\n\nQuery: {input}\nAnswer:"
)
_MULTI_NEWS = (
    "You are given several news passages. Write a one-page summary of all news. \n\nNews:\n{context}\n\n"
    "Now, write a one-page summary of all the news.\n\nSummary:"
)
_TREC = "Please determine the type of the question below. Here are some examples of questions.\n\n{context}\n{input}"
_TRIVIAQA = (
    "Answer the question based on the given passage. Only give me the answer and do not output any other words. The "
    "following are some examples.\n\n{context}\n\n{input}"
)
_SAMSUM = "Summarize the dialogue into a few short sentences. The following are some examples.\n\n{context}\n\n{input}"
_PASSAGE_COUNT = (
    "There are some paragraphs below sourced from Wikipedia. Some of them may be duplicates. Please carefully read "
    "these paragraphs and determine how many unique paragraphs there are after removing duplicates. In other words, "
    "how many non-repeating paragraphs are there in total?\n\n{context}\n\nPlease enter the final count of unique "
    "paragraphs after removing duplicates. The output format should only contain the number, such as 1, 2, 3, and so "
    "on.\n\nThe final answer is: "
)
_PASSAGE_RETRIEVAL = (
    "Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine which paragraph the abstract is "
    "from.\n\n{context}\n\nThe following is an abstract.\n\n{input}\n\nPlease enter the number of the paragraph that "
    'the abstract is from. The answer format must be like "Paragraph 1", "Paragraph 2", etc.\n\nThe answer is: '
)
_LCC = "Please complete the code given below. \n{context}Next line of code:\n"
_REPOBENCH = "Please complete the code given below. \n{context}{input}Next line of code:\n"

SUBSETS = {
    "narrativeqa": Subset(_NARRATIVEQA, 128, "qa_f1"),
    "qasper": Subset(_QASPER, 128, "qa_f1"),
    "multifieldqa_en": Subset(_MULTIFIELDQA, 64, "qa_f1"),
    "hotpotqa": Subset(_PASSAGES, 32, "qa_f1"),
    "2wikimqa": Subset(_PASSAGES, 32, "qa_f1"),
    "musique": Subset(_PASSAGES, 32, "qa_f1"),
    "gov_report": Subset(_GOV_REPORT, 512, "rouge_l"),
    "qmsum": Subset(_QMSUM, 512, "rouge_l"),
    "multi_news": Subset(_MULTI_NEWS, 512, "rouge_l"),
    "trec": Subset(_TREC, 64, "classification", as_chat=False, first_line=True),
    "triviaqa": Subset(_TRIVIAQA, 32, "qa_f1", as_chat=False, first_line=True),
    "samsum": Subset(_SAMSUM, 128, "rouge_l", as_chat=False, first_line=True),
    "passage_count": Subset(_PASSAGE_COUNT, 32, "count"),
    "passage_retrieval_en": Subset(_PASSAGE_RETRIEVAL, 32, "retrieval"),
    "lcc": Subset(_LCC, 64, "code_similarity", as_chat=False),
    "repobench-p": Subset(_REPOBENCH, 64, "code_similarity", as_chat=False),
}
