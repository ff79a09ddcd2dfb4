"""How far predictions are from what this machine was measured to take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from pipeline.comparison import Comparison
from pipeline.comparison.runs import Run
from pipeline.fafo.step_times import StepTimes
from pipeline.projection.curve import Curve
from pipeline.projection.fit import Fit, fit
from pipeline.projection.machine import Machine
from pipeline.projection.traces import Trace

Traces = Mapping[str, Trace]  # by prompt id


@dataclass(frozen=True)
class Errors:
    """Relative errors, signed: predicted by measured, less one."""

    values: list[float]

    @property
    def median_absolute(self) -> float | None:
        """Without the sign; None of nothing."""
        return median(map(abs, self.values)) if self.values else None

    @property
    def median_signed(self) -> float | None:
        """Less than 0: predictions tend to be too short; None of nothing."""
        return median(self.values) if self.values else None


@dataclass(frozen=True)
class Accuracy:
    """Of one way to predict: of decode seconds and prefill seconds per prompt and method, and of speedups."""

    decode: dict[str, list[float]]  # by method
    prefill: list[float]
    speedup: list[float]  # of each method on each dataset

    @property
    def all_decode(self) -> Errors:
        """Of all methods."""
        return Errors([error for errors in self.decode.values() for error in errors])


@dataclass(frozen=True)
class Validation:
    """Predictions for this machine beside its measured times.

    machine: which. curve: predicted from its measured step times. roofline: by one that was fitted to three points of
    these; `fitted` has how well it does at the others.
    """

    machine: str
    comparisons: Sequence[Comparison]
    traces: Mapping[str, Traces]  # by run folder
    curve_machine: Curve
    dtype: str

    @cached_property
    def fitted(self) -> Fit:
        """The roofline of this machine."""
        return fit(self.curve_machine.times, self.curve_machine.shape, self.dtype)

    @cached_property
    def curve(self) -> Accuracy:
        """Of the measured curve."""
        return self._accuracy(self.curve_machine)

    @cached_property
    def roofline(self) -> Accuracy:
        """Of the fitted roofline."""
        return self._accuracy(self.fitted.roofline)

    def _accuracy(self, machine: Machine) -> Accuracy:
        decode: dict[str, list[float]] = {}
        prefill: list[float] = []
        speedups: list[float] = []
        for c in self.comparisons:
            run = c.pairs[0].run
            for key, result in run.results.items():
                found = self.traces[str(run.folder)][key]
                decode.setdefault(c.method, []).append(machine.decode_seconds(found) / result.decode_seconds - 1)
                if len(found.prefills.rows):
                    prefill.append(machine.prefill_seconds(found) / result.prefill_seconds - 1)
            if not c.is_baseline:
                speedups.append(self._speedup(c, machine) / c.speedup - 1)
        return Accuracy(decode, prefill, speedups)

    def _speedup(self, comparison: Comparison, machine: Machine) -> float:
        ours, theirs = (
            throughput(machine, self.traces, [getattr(pair, side) for pair in comparison.pairs])
            for side in ("run", "baseline")
        )
        return ours / theirs


def throughput(machine: Machine, traces: Mapping[str, Traces], runs: Sequence[Run]) -> float:
    """Predicted new tokens a second of some runs together, prefill included."""
    found = [one for run in runs for one in traces[str(run.folder)].values()]
    seconds = sum(machine.decode_seconds(one) + machine.prefill_seconds(one) for one in found)
    return sum(one.n_new_tokens for one in found) / seconds


def recorded_times(run: Run, runs: Sequence[Run]) -> StepTimes | None:
    """The step times that a run was planned with, or else another run of the same machine, model and dtype."""
    for other in [run, *(o for o in runs if o.setup == run.setup)]:
        for session in reversed(other.record.management.sessions):
            if session.step_times is not None:
                return session.step_times
    return None
