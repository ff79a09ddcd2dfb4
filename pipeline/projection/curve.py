"""Time of a pass on the machine that ran it, from its measured step times."""

from dataclasses import dataclass

import numpy as np

from pipeline.fafo.step_times import StepTimes
from pipeline.projection.machine import Machine, weights
from pipeline.projection.passes import Numbers, Passes
from pipeline.projection.shapes import Shape


@dataclass(frozen=True)
class Curve(Machine):
    """A machine whose steps were measured: seconds by rows and, per cached token, by the rows that see it.

    It is linear between and beyond what was measured, so a long prompt is far outside; what each of its rows sees of
    the others, which the table has for few rows only, is then counted as cached tokens. Where layers are skipped or the
    head isn't needed, time shrinks as the weights that are left.
    """

    times: StepTimes
    shape: Shape

    def seconds(self, passes: Passes) -> Numbers:
        """Of each pass. See `Machine.seconds`."""
        if not len(passes.rows):
            return passes.rows
        n = passes.all_rows.astype(int)
        seconds, per_token = map(np.array, self.times.interpolated(int(n.max())))
        among_rows = np.clip(n - self.times.rows[-1], 0, None) / 2
        share = weights(self.shape, passes) / weights(self.shape, Passes(passes.rows, passes.context))
        found: Numbers = (
            share * seconds[n]
            + per_token[n] * among_rows
            + per_token[passes.rows.astype(int)] * passes.context
            + per_token[passes.window_rows.astype(int)] * passes.window_context
        )
        return found
