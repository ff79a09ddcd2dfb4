"""Scoring HumanEval answers: which code an answer means, and whether it passes the problem's tests."""

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import dropwhile, takewhile

from eval.humaneval.execute import passes
from eval.humaneval.load import HumanEvalParams
from eval.sample import Sample, Scores

_FENCED = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
_AFTER_FUNCTION = re.compile(r"\n(?=class |def |#|if |print)")  # where the paper's completions stop
_CODE_STARTS = re.compile(r"(async )?def |class |import |from |@|[ \t]+\S")
_CODE_GOES_ON = re.compile(r"(async )?def |class |import |from |[@#)\]}]|\s|$")


def score(sample: Sample, answers: Sequence[str], params: HumanEvalParams) -> Scores:
    """Whether the answer's code parses and, if the config lets it be executed, whether it passes the tests."""
    code = code_of(sample, answers[0])
    scores = {"parses": float(code is not None)}
    if not params.execute_generated_code:
        return scores
    return {"pass@1": float(code is not None and passes(program_of(sample, code)))} | scores


def code_of(sample: Sample, answer: str) -> str | None:
    """The first way to read the answer as Python that defines the entry point, or None. Nothing is executed."""
    candidates = _candidates(sample.reference["prompt"], answer)
    return next((code for code in candidates if _defines(code, sample.reference["entry_point"])), None)


def program_of(sample: Sample, code: str) -> list[str]:
    """What to execute in turn: what the prompt has above its function (imports, helpers), the code, the tests."""
    prompt, entry_point = sample.reference["prompt"], sample.reference["entry_point"]
    function = re.search(rf"^(async )?def {entry_point}\b", prompt, re.MULTILINE)
    above = prompt[: function.start()] if function else ""
    return [above, code, f"{sample.reference['test']}\ncheck({entry_point})"]


def _candidates(prompt: str, answer: str) -> Iterator[str]:
    """Ways to read an answer as code: fenced blocks, whole or as a body; else bare code, with text around it or not."""
    blocks = _FENCED.findall(answer)
    if not blocks:
        blocks = [answer, _AFTER_FUNCTION.split(answer, maxsplit=1)[0], _without_text(answer)]
    for block in blocks:
        yield block
        yield prompt + block


def _without_text(answer: str) -> str:
    """The first lines in a row that look like a function's."""
    lines = dropwhile(lambda line: not _CODE_STARTS.match(line), answer.split("\n"))
    return "\n".join(takewhile(_CODE_GOES_ON.match, lines))


def _defines(code: str, entry_point: str) -> bool:
    """Whether `code` parses and has the function at its top level, with more of a body than the prompt's."""
    try:
        with warnings.catch_warnings(action="ignore"):  # on invalid escapes in the answer
            module = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # null bytes, endless nesting
        return False
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return any(node.name == entry_point and not all(map(_is_stub, node.body)) for node in functions)


def _is_stub(statement: ast.stmt) -> bool:
    """What the prompt's own function consists of: docstrings and imports (and "...")."""
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_constant or isinstance(statement, ast.Import | ast.ImportFrom)
