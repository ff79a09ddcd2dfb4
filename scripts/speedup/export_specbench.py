"""Write runs as Spec-Bench's answers, for its own scripts to compare.

    python scripts/speedup/export_specbench.py <output_dir>

Takes the finished runs in the folder and below it that `compute_speedup.py` would compare, and writes each to
<output_dir>/spec-bench/<dataset>/<model>/<method>.jsonl. Then, in a checkout of github.com/hemingkx/Spec-Bench,

    python evaluation/speed.py --file-path F/fafo-stream-llm.jsonl --base-path F/baseline.jsonl --tokenizer-path MODEL
    python evaluation/equal.py --file-path F/ --jsonfile1 baseline.jsonl --jsonfile2 fafo-stream-llm.jsonl

where F is the folder of a dataset and model (equal.py needs the slash at its end), and MODEL the model's folder or hub
id. Its numbers are not quite ours, since speed.py
- averages the prompts' tokens per second, where ours are all tokens by all seconds;
- counts the baseline's tokens by tokenizing its text, less one a turn for a first token that Vicuna's tokenizer adds.
  Others may add none, and the token that ends an answer is not in the text: the baseline seems slower by one or two
  tokens an answer, and the speedup larger.
"#Mean accepted tokens" is our tau. Spec-Bench's own runs read a conversation anew at each turn; ours, of all methods,
go on with the cache of the turn before.

question_id is the prompt's id where all of the dataset's are numbers, as MT-Bench's and Spec-Bench's are; others are
numbered from 1 on, in the ids' order. category is the question's for these two. For other datasets it is the dataset's
name, which speed.py does not know: only what it prints of task "overall" is of these, and "nan" of the rest.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from eval.questions import answer_row, as_jsonl, model_id
from pipeline.common.cli import folder
from pipeline.common.records import PromptResult
from pipeline.comparison import Comparison, Run, compare_runs
from pipeline.errors import UserError
from pipeline.files import write_whole

FOLDER = "spec-bench"
CATEGORIZED = ("mtbench", "specbench")  # groups of these are Spec-Bench's categories


def main(argv: list[str] | None = None) -> int:
    """Write the files; exit code 2: there is nothing to write, or it can't be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_dir", type=folder, help="a folder with the run folders of a baseline and others")
    args = parser.parse_args(argv)
    overview = compare_runs(args.output_dir)
    for refusal in overview.refused:
        sys.stderr.write(f"skipped {refusal.what}: {refusal.reason}\n")
    try:
        files = files_of(overview.datasets)
        for name, comparison in files.items():
            path = args.output_dir / FOLDER / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, as_jsonl(answers(comparison.run, path.stem)))
            sys.stdout.write(f"{path}\n")
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"error: {error.filename} can't be written ({error.strerror})\n")
        return 2
    if not files:
        sys.stderr.write(f"error: {args.output_dir}: no finished runs there or below with a baseline\n")
        return 2
    return 0


def files_of(groups: Sequence[tuple[str, Sequence[Comparison]]]) -> dict[Path, Comparison]:
    """Which run each file is of. Names say what tells the runs of a model apart.

    Raises:
        UserError: two runs differ in nothing that a name could say.
    """
    files: dict[Path, Comparison] = {}
    for title, comparisons in groups:
        for comparison in comparisons:
            run = comparison.run
            model = _plain(title.removeprefix(f"{run.dataset}, "))
            name = Path(run.dataset, model, f"{_plain(comparison.method)}.jsonl")
            if name in files:
                raise UserError(
                    f"{files[name].run.folder} and {run.folder} would both be {name}; move one of them elsewhere"
                )
            files[name] = comparison
    return files


def answers(run: Run, method: str) -> list[dict[str, Any]]:
    """A row for each prompt of a run.

    Besides what FastChat's rows have: category; and of each turn decoding_steps, new_tokens and wall_time, the seconds
    of prefill and decoding. accept_lengths are the new tokens of every step, from turn to turn.
    """
    model = f"{model_id(run.model_name)}-{method}"
    rows = []
    for question, result in zip(question_ids(list(run.results)), run.results.values(), strict=True):
        row = answer_row(question, model, [turn.output_text for turn in result.turns] or [result.output_text])
        row["category"] = (run.dataset in CATEGORIZED and result.group) or run.dataset
        row["choices"][0] |= {
            "decoding_steps": steps(result),
            "new_tokens": new_tokens(result),
            "wall_time": seconds(result),
            "accept_lengths": result.accepted_lengths,
        }
        rows.append(row)
    return rows


def question_ids(ids: Sequence[str]) -> list[int]:
    """Their numbers, if all are different numbers, or else those of their places, from 1 on."""
    numbers = {int(i) for i in ids if i.isascii() and i.isdigit()}
    return list(map(int, ids)) if len(numbers) == len(ids) else list(range(1, len(ids) + 1))


def new_tokens(result: PromptResult) -> list[int]:
    """Of each turn."""
    return [len(answer) for answer in result.answers]


def steps(result: PromptResult) -> list[int]:
    """Of each turn. The record has the steps of all turns in a row, and none yields tokens of two turns."""
    n_done = list(accumulate(result.accepted_lengths, initial=0))
    ends = [n_done.index(n) for n in accumulate(new_tokens(result), initial=0)]
    return [end - start for start, end in pairwise(ends)]


def seconds(result: PromptResult) -> list[float]:
    """Of each turn, prefill and decoding.

    Older records have but the sum over the turns, which is all that speed.py reads: it is shared by new tokens.
    """
    total = result.prefill_seconds + result.decode_seconds
    timed = [(turn.prefill_seconds, turn.decode_seconds) for turn in result.turns]
    known = [prefill + decode for prefill, decode in timed if prefill is not None and decode is not None]
    if known and len(known) == len(timed):
        return known
    return [total * n / result.n_new_tokens for n in new_tokens(result)]


def _plain(name: str) -> str:
    """A name that needs no quotes in a shell."""
    return re.sub(r"[^\w.+-]+", "-", name).strip("-")


if __name__ == "__main__":
    sys.exit(main())
