"""Scoring HumanEval answers without running them."""

import ast
import re
import warnings
from collections.abc import Iterator

from eval.sample import Sample

_FENCED = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
_AFTER_FUNCTION = re.compile(r"\n(?=class |def |#|if |print)")  # where the paper's completions stop


def parses(sample: Sample, answer: str) -> float:
    """1.0 if the answer's code is Python that defines the entry point, else 0.0. Nothing is executed."""
    entry_point = sample.reference["entry_point"]
    return float(any(_defines(code, entry_point) for code in _candidates(sample.reference["prompt"], answer)))


def _candidates(prompt: str, answer: str) -> Iterator[str]:
    """Ways to read an answer as code: fenced blocks, whole or as a body; else a bare continuation."""
    blocks = _FENCED.findall(answer)
    if not blocks:
        blocks = [answer, _AFTER_FUNCTION.split(answer, maxsplit=1)[0]]
    for block in blocks:
        yield block
        yield prompt + block


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
