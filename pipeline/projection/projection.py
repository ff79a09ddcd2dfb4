"""All runs of a folder on devices that are not at hand."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.comparison import Comparison, Overview, Refusal
from pipeline.comparison.runs import Run
from pipeline.errors import UserError
from pipeline.projection.curve import Curve
from pipeline.projection.devices import Device, with_free_launches
from pipeline.projection.machine import Machine
from pipeline.projection.roofline import Roofline
from pipeline.projection.shapes import Shape, recorded_shape
from pipeline.projection.traces import traces
from pipeline.projection.validation import Traces, Validation, recorded_times, throughput

LABEL = "projected"
NO_CURVE = (
    'this machine is neither projected nor validated: that takes a run with "planner": "auto", which records step '
    "times, and the config of its model"
)
OTHER_SHAPE = "this machine's curve is of the recorded model, so it is not projected for another shape"


@dataclass(frozen=True)
class Figure:
    """What is projected of one method on one device.

    throughput: new tokens a second, prefill included. speedup_with_free_launches: if launching kernels took no time;
    None for the measured curve, in which it can't be told apart.
    """

    throughput: float
    speedup: float
    speedup_with_free_launches: float | None


@dataclass(frozen=True)
class Row:
    """A comparison, and what is projected of it by column."""

    comparison: Comparison
    projected: dict[str, Figure]


@dataclass(frozen=True)
class Group:
    """What may stand in one table. shape: that was projected. recorded_on: the model that the traces are of."""

    title: str
    shape: Shape
    recorded_on: str
    rows: list[Row]
    notes: list[str]

    @property
    def columns(self) -> list[str]:
        """Names of devices with their dtype, each said to be projected."""
        return list(self.rows[0].projected)

    @property
    def is_other_shape(self) -> bool:
        """Whether acceptance recorded on one model is laid on another's costs."""
        return self.shape.name != self.recorded_on


@dataclass(frozen=True)
class Projection:
    """Everything that was projected, with how well the same does for this machine."""

    groups: list[Group]
    validations: list[Validation]
    refused: list[Refusal]
    devices: list[Device]
    dtype: str


def project(
    overview: Overview, devices: Sequence[Device], dtype: str, with_cpu: bool = True, shape: Shape | None = None
) -> Projection:
    """Project all comparisons of a folder.

    Args:
        dtype: on the devices. with_cpu: whether this machine is projected too, from its measured curve.
        shape: of the model to project, each run's own by default.

    Raises:
        UserError: a device does not hold the model, is not described for the dtype, or the model's shape is not known.
    """
    comparisons, found, refused = _traced(overview.comparisons)
    overalls = [
        c for c in overview.overalls if all(str(r.folder) in found for p in c.pairs for r in (p.run, p.baseline))
    ]
    curves = _curves(comparisons)
    known = {id(c) for c in (*comparisons, *overalls)}
    groups = []
    for title, all_of_group in [*overview.datasets, *overview.overall]:
        group = [c for c in all_of_group if id(c) in known]
        if not group:
            continue
        run = group[0].run
        projected_shape = shape or recorded_shape(run.model_name)
        machines: dict[str, Machine] = {
            f"{LABEL}: {device.name} ({dtype})": Roofline(device, projected_shape, dtype) for device in devices
        }
        notes = []
        if with_cpu:
            curve = curves.get(_setup(run))
            if curve is None:
                notes.append(NO_CURVE)
            elif curve.shape != projected_shape:
                notes.append(OTHER_SHAPE)
            else:
                machines[f"{LABEL}: this machine ({run.params['dtype']}, measured curve)"] = curve
        if not machines:
            raise UserError(f'--device: found "cpu" alone, but {notes[0]}; name another device too')
        rows = [Row(c, {name: _figure(c, machine, found) for name, machine in machines.items()}) for c in group]
        groups.append(Group(title, projected_shape, run.model, rows, notes))
    validations = [
        Validation(_machine(of_setup[0].run), of_setup, found, curve, str(of_setup[0].run.params["dtype"]))
        for setup, curve in curves.items()
        if (of_setup := [c for c in comparisons if _setup(c.run) == setup])
    ]
    return Projection(groups, validations, refused, list(devices), dtype)


def _traced(comparisons: Sequence[Comparison]) -> tuple[list[Comparison], dict[str, Traces], list[Refusal]]:
    """Those whose runs have traces, the traces by run folder, and why the others have none."""
    found: dict[str, Traces] = {}
    refused: dict[str, Refusal] = {}
    for comparison in comparisons:
        for pair in comparison.pairs:
            for run in (pair.run, pair.baseline):
                folder = str(run.folder)
                if folder in found or folder in refused:
                    continue
                try:
                    found[folder] = traces(run)
                except UserError as error:
                    refused[folder] = Refusal(folder, str(error))
    kept = []
    for comparison in comparisons:
        folder, baseline = (str(r.folder) for r in (comparison.run, comparison.pairs[0].baseline))
        if baseline in refused and folder not in refused:
            refused[folder] = Refusal(folder, f"its baseline can't be projected: {refused[baseline].reason}")
        if folder not in refused:
            kept.append(comparison)
    return kept, found, list(refused.values())


def _curves(comparisons: Sequence[Comparison]) -> dict[str, Curve]:
    """The measured curve of each machine, model and dtype that has one."""
    runs = [c.run for c in comparisons]
    curves: dict[str, Curve] = {}
    for run in runs:
        times = recorded_times(run, runs)
        if times is not None and _setup(run) not in curves:
            try:
                curves[_setup(run)] = Curve(times, recorded_shape(run.model_name))
            except UserError:  # its config is not here, which matters only where its shape is to be projected
                continue
    return curves


def _setup(run: Run) -> str:
    return repr(run.setup)


def _machine(run: Run) -> str:
    return f"{run.setup['device_name']}, {run.setup['dtype']}, threads: {run.setup['threads']}, {run.model}"


def _figure(comparison: Comparison, machine: Machine, found: dict[str, Traces]) -> Figure:
    runs = [pair.run for pair in comparison.pairs]
    baselines = [pair.baseline for pair in comparison.pairs]

    def speedup(on: Machine) -> float:
        return throughput(on, found, runs) / throughput(on, found, baselines)

    free = None
    if isinstance(machine, Roofline):
        free = speedup(Roofline(with_free_launches(machine.device), machine.shape, machine.dtype))
    return Figure(throughput(machine, found, runs), speedup(machine), free)
