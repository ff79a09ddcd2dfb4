"""Compare the outputs of two runs of the same prompts, and tell rounding from faults.

    python scripts/audit.py <run_a> <run_b>

Each is a run's folder (or its output_config.json, by whatever name); an unfinished run is compared as far as it is.
See `pipeline/common/audit.py` for what is a near tie and what is a fault. Writes nothing. Exit code 1 for a fault, 2
for runs that can't be compared.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipeline.common.access import redact
from pipeline.common.audit import audit, describe
from pipeline.common.logs import adopt_library_logs
from pipeline.common.memory import is_out_of_memory
from pipeline.common.recorded import read_run
from pipeline.common.records import Audit
from pipeline.errors import UserError


def main(argv: list[str] | None = None) -> int:
    """Print a row for every prompt whose outputs differ, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_a", type=Path, help="a run's folder")
    parser.add_argument("run_b", type=Path, help="another's")
    args = parser.parse_args(argv)
    adopt_library_logs()
    try:
        result = audit(read_run(args.run_a), read_run(args.run_b))
    except (UserError, OSError) as error:
        return fail(str(error))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return fail(f"out of memory: {error}; free some, or use another device")
    console = Console()
    if result.n_near_ties or result.n_faults:
        console.print(difference_table(result))
    console.print(f"{describe(result)} ({result.dtype})")
    return 1 if result.n_faults else 0


def difference_table(result: Audit) -> Table:
    """One row for each prompt with a difference."""
    table = Table("prompt", "position", "tokens", "gap", "behind best", "noise", "verdict")
    for prompt in result.prompts:
        if prompt.verdict != "identical":
            tokens = ["end" if token is None else str(token) for token in (prompt.token_a, prompt.token_b)]
            logits = (prompt.gap, prompt.behind_best, prompt.noise)
            numbers = ("" if value is None else f"{value:.3g}" for value in logits)
            table.add_row(prompt.id, str(prompt.position), ", ".join(tokens), *numbers, prompt.verdict)
    return table


def fail(message: str) -> int:
    """Say in one line what is wrong; return the exit code for it."""
    sys.stderr.write("error: " + " ".join(redact(message).split()) + "\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
