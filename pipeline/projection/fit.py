"""A roofline for a machine of which only a measured curve is known: fitted on a few of its points."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from pipeline.fafo.step_times import StepTimes
from pipeline.projection.devices import DTYPES, Device
from pipeline.projection.passes import Numbers, Passes, numbers
from pipeline.projection.roofline import Roofline
from pipeline.projection.shapes import Shape

WANTED_ROWS = (1, 16, 64)
CONTEXTS = (0, 2048)  # cached tokens; the table has times for any number, measured at 256 and at 2048


@dataclass(frozen=True)
class Fit:
    """A roofline and what it was fitted on. rows: numbers of rows. errors: at all other points, relative, signed."""

    roofline: Roofline
    rows: list[int]
    errors: list[float]


def fit(times: StepTimes, shape: Shape, dtype: str) -> Fit:
    """Fit peak, bandwidth and launch time to the step times of three row counts, those next to `WANTED_ROWS`.

    Least squares of relative errors. The other points of the curve tell how good it is; a curve of three has none.
    """
    rows = sorted({min(times.rows, key=lambda n: (abs(n - wanted), n)) for wanted in WANTED_ROWS})
    fitted_on, (plain, *_), n_most = _points(times, rows), times.seconds, rows[-1]
    n_weights = shape.attention_weights + shape.mlp_weights + shape.head_weights
    start = [2 * n_weights * n_most / times.seconds[times.rows.index(n_most)], 4 * n_weights / plain, plain / 1e4]

    def roofline(logs: Numbers) -> Roofline:
        peak, bandwidth, launch_seconds = (float(value) for value in np.exp(logs))
        device = Device(
            "fitted to this machine", dict.fromkeys(DTYPES, peak), bandwidth, memory=1e30,
            launch_seconds=min(launch_seconds, 1.0), bandwidth_efficiency=1.0, peak_efficiency=1.0,
        )  # fmt: skip
        return Roofline(device, shape, dtype)

    found = least_squares(lambda logs: _errors(roofline(logs), *fitted_on), np.log(start)).x
    others = [n for n in times.rows if n not in rows]
    errors = _errors(roofline(found), *_points(times, others)) if others else np.zeros(0)
    return Fit(roofline(found), rows, [float(error) for error in errors])


def _points(times: StepTimes, rows: list[int]) -> tuple[Passes, Numbers]:
    """Passes with each number of rows and each context, and what the table says of them."""
    pairs = [(n, context) for n in rows for context in CONTEXTS]
    measured = [times.seconds[i] + times.per_token[i] * c for n, c in pairs for i in [times.rows.index(n)]]
    return Passes(numbers([n for n, _ in pairs]), numbers([c for _, c in pairs])), numbers(measured)


def _errors(roofline: Roofline, passes: Passes, measured: Numbers) -> Numbers:
    found: Numbers = roofline.seconds(passes) / measured - 1
    return found
