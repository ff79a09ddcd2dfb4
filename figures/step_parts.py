"""Where the time of a step goes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import BaseModel, Field, ValidationError

from figures.style import PAGE, Look, bar_handle, fit, legend_below
from pipeline.errors import UserError

Quartiles = tuple[float, float, float]
MOST_COLUMNS = 4
LINE = 0.24  # inches: height of a bar's line
MAKE_IT = "python scripts/speedup/bench_step.py --json"


class StepTimes(BaseModel):
    """Milliseconds of one method's step and of its parts."""

    context: int
    method: str
    step: Quartiles
    verification: Quartiles = Field(alias="verification attention")
    window: Quartiles = Field(alias="window attention")
    rest: Quartiles = Field(alias="rest of the model")
    reading: Quartiles = Field(alias="reading tokens")
    own: Quartiles = Field(alias="own code")


PARTS = {
    "verification": Look("#0072b2", "", ""),
    "window": Look("#e69f00", "////", ""),
    "rest": Look("#bbbbbb", "", ""),
    "reading": Look("#009e73", "xxxx", ""),
    "own": Look("#000000", "", ""),
}


class Machine(BaseModel):
    """Where it was measured."""

    device: str
    model: str
    dtype: str
    compile: bool


class StepReport(BaseModel):
    """What bench_step.py writes."""

    machine: Machine
    steps: list[StepTimes] = Field(min_length=1)


def read_steps(path: Path) -> StepReport:
    """Read what bench_step.py wrote.

    Raises:
        UserError: there is no such file, or it is another's.
    """
    try:
        return StepReport.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} can't be read ({error.strerror}); make it with {MAKE_IT} {path}") from None
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        place = ".".join(map(str, detail["loc"])) or "the file"
        reason = f"{place}: {detail['msg']}"
        raise UserError(f"{path} is not of bench_step.py ({reason}); make it anew with {MAKE_IT} {path}") from None


def part_name(part: str) -> str:
    """As bench_step.py has it."""
    return str(StepTimes.model_fields[part].alias)


def step_parts(report: StepReport) -> Figure:
    """The parts of a step, stacked: a plot per context, a bar per method, with the quartiles of the whole step."""
    contexts = sorted({step.context for step in report.steps})
    methods = list(dict.fromkeys(step.method for step in report.steps))
    n_columns = min(len(contexts), MOST_COLUMNS)
    n_lines = -(-len(contexts) // n_columns)
    figure = Figure(figsize=(PAGE, n_lines * (LINE * len(methods) + 0.6) + 0.2), layout="constrained")
    grid = list(figure.subplots(n_lines, n_columns, squeeze=False, sharey=True).flat)
    for axes, context in zip(grid, contexts, strict=False):
        draw_stacks(axes, [step for step in report.steps if step.context == context], methods)
        axes.set(title=f"{context:,} cached tokens", xlabel="ms a step")
    for surplus in grid[len(contexts) :]:
        figure.delaxes(surplus)
    machine = report.machine
    compiled = ", compiled" if machine.compile else ""
    title = f"{machine.model}, {machine.dtype}{compiled}; {machine.device}"
    figure.suptitle(fit(title, PAGE), fontsize=8)
    legend_below(figure, [bar_handle(look, part_name(part)) for part, look in PARTS.items()])
    return figure


def draw_stacks(axes: Axes, steps: Sequence[StepTimes], methods: Sequence[str]) -> None:
    """One plot."""
    places = [methods.index(step.method) for step in steps]
    left = np.zeros(len(steps))
    for part, look in PARTS.items():
        medians = np.array([getattr(step, part)[1] for step in steps])
        axes.barh(places, medians, 0.7, left, label=part_name(part), **look.bar())
        left += medians
    low, middle, high = np.array([step.step for step in steps]).T
    spread = [middle - low, high - middle]
    axes.errorbar(middle, places, xerr=spread, fmt="none", ecolor="black", elinewidth=0.8, capsize=2)
    axes.set_yticks(range(len(methods)), methods)
    axes.set_ylim(len(methods) - 0.5, -0.5)
    axes.grid(axis="x")
