"""projection.md and projection.json. Whatever is projected is called so wherever it stands."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pandas import DataFrame

from pipeline.files import write_whole
from pipeline.projection.projection import LABEL, NO_CURVE, Group, Projection
from pipeline.projection.validation import Accuracy, Errors, Validation

NAME = "projection"
_HOW_TO_READ = """\
Nothing in a column that says "projected" was measured on the device that it names. What was recorded here of every step
(its rows, the cached tokens that they saw, the tokens accepted) is laid on the device's data sheet: a roofline of
weights, keys and values and arithmetic, with the time to launch kernels. Speedup is of the whole generation, prefill
included, by plain decoding on the same device. Acceptance is taken as recorded; in another dtype or model it may
differ. Planners chose the rows for the machine that recorded them, and would choose others for a faster one. The second
table leaves launches out: a real device lies between both where its launches overlap with work.
"""


def write_files(projection: Projection, folder: Path) -> None:
    """Write both files.

    Raises:
        OSError: the folder can't be written to.
    """
    write_whole(folder / f"{NAME}.md", as_markdown(projection, folder).encode())
    write_whole(folder / f"{NAME}.json", as_json(projection, folder).encode())


def as_markdown(projection: Projection, folder: Path) -> str:
    """The tables, the assumptions, and how well the same predicts this machine."""
    blocks = ["# Projected speedup", _HOW_TO_READ.strip(), "## Validation on this machine"]
    blocks += [block for v in projection.validations for block in _validation(v)] or [_sentence(NO_CURVE)]
    for group in projection.groups:
        blocks += [f"## {heading(group)}", _markdown(speedups(group)), *map(_sentence, group.notes)]
        free = DataFrame([_free_row(group, row.projected, row.comparison.method) for row in group.rows])
        if free.shape[1] > 1:
            blocks += [f"### {heading(group)}: launches free", _markdown(free)]
    if projection.devices:
        blocks += ["## Devices that were projected", _markdown(_devices(projection))]
    if projection.refused:
        rows = [{"what": _inside(r.what, folder), "why": r.reason} for r in projection.refused]
        blocks += ["## Not projected", _markdown(DataFrame(rows))]
    return "\n\n".join(blocks) + "\n"


def as_json(projection: Projection, folder: Path) -> str:
    """Everything, for other programs."""
    content = {
        "label": LABEL,
        "dtype": projection.dtype,
        "devices": [asdict(device) for device in projection.devices],
        "validation": [_validation_numbers(v) for v in projection.validations],
        "groups": [_group_numbers(group, folder) for group in projection.groups],
        "refused": [{"folder": _inside(r.what, folder), "reason": r.reason} for r in projection.refused],
    }
    return json.dumps(content, indent=2) + "\n"


def heading(group: Group) -> str:
    """A table's or plot's title, with what the numbers are of."""
    if group.is_other_shape:
        return f"{group.title}: {LABEL} for {group.shape.name}, acceptance recorded on {group.recorded_on}"
    return f"{group.title}: measured and {LABEL}"


def speedups(group: Group) -> DataFrame:
    """A row for each method: what was measured here, then what is projected, each column named so."""
    return DataFrame(
        {
            "method": row.comparison.method,
            "tau": f"{row.comparison.summary.tau:.2f}",
            f"measured here, {group.recorded_on}": f"{row.comparison.speedup:.2f}x",
            **{name: f"{figure.speedup:.2f}x" for name, figure in row.projected.items()},
        }
        for row in group.rows
    )


def validation_lines(validation: Validation) -> list[str]:
    """How far predictions are off, in sentences."""
    fitted, curve, roofline = validation.fitted, validation.curve, validation.roofline
    rows = ", ".join(map(str, fitted.rows))
    return [
        f"From the measured curve, decode seconds of each prompt and method: {_off(curve.all_decode)}; "
        f"prefill seconds: {_off(Errors(curve.prefill))}; speedups: {_off(Errors(curve.speedup))}.",
        f"A roofline fitted to {rows} rows of the curve, at its other points: {_off(Errors(fitted.errors))}.",
        f"The same roofline, decode seconds of each prompt and method: {_off(roofline.all_decode)}; "
        f"speedups: {_off(Errors(roofline.speedup))}.",
    ]


def _validation(validation: Validation) -> list[str]:
    lines = "\n".join(f"- {line}" for line in validation_lines(validation))
    table = DataFrame(
        {
            "method": method,
            "prompts": str(len(errors)),
            "decode seconds, from the curve": _off(Errors(errors)),
            "by the fitted roofline": _off(Errors(validation.roofline.decode[method])),
        }
        for method, errors in validation.curve.decode.items()
    )
    return [f"{validation.machine}. Errors are relative to what was measured.", lines, _markdown(table)]


def _off(errors: Errors) -> str:
    if errors.median_absolute is None or errors.median_signed is None:
        return "nothing to compare"
    return f"median error {errors.median_absolute:.1%} (signed {errors.median_signed:+.1%}, of {len(errors.values)})"


def _free_row(group: Group, projected: dict[str, Any], method: str) -> dict[str, str]:
    found = {name: projected[name].speedup_with_free_launches for name in group.columns}
    return {"method": method} | {name: f"{speedup:.2f}x" for name, speedup in found.items() if speedup is not None}


def _devices(projection: Projection) -> DataFrame:
    return DataFrame(
        {
            "device": device.name,
            f"peak TFLOP/s ({projection.dtype})": f"{device.peak_of(projection.dtype) / 1e12:g}",
            "of which": f"{device.peak_efficiency:.0%}",
            "bandwidth GB/s": f"{device.bandwidth / 1e9:g}",
            "of it": f"{device.bandwidth_efficiency:.0%}",
            "us a launch": f"{device.launch_seconds * 1e6:g}",
        }
        for device in projection.devices
    )


def _group_numbers(group: Group, folder: Path) -> dict[str, Any]:
    return {
        "title": heading(group),
        "projected_shape": group.shape.name,
        "recorded_on": group.recorded_on,
        "notes": group.notes,
        "rows": [
            {
                "dataset": row.comparison.dataset,
                "method": row.comparison.method,
                "folder": None if row.comparison.is_overall else _inside(str(row.comparison.run.folder), folder),
                "tau": row.comparison.summary.tau,
                "measured_speedup": row.comparison.speedup,
                "projected": {
                    name: {
                        "projected_throughput_tokens_per_second": figure.throughput,
                        "projected_speedup": figure.speedup,
                        "projected_speedup_with_free_launches": figure.speedup_with_free_launches,
                    }
                    for name, figure in row.projected.items()
                },
            }
            for row in group.rows
        ],
    }


def _validation_numbers(validation: Validation) -> dict[str, Any]:
    fitted = validation.fitted
    return {
        "machine": validation.machine,
        "curve": _accuracy_numbers(validation.curve),
        "roofline": {
            "fitted_to_rows": fitted.rows,
            "peak": fitted.roofline.device.peak_of(validation.dtype),
            "bandwidth": fitted.roofline.device.bandwidth,
            "launch_seconds": fitted.roofline.device.launch_seconds,
            "other_points_of_the_curve": _error_numbers(fitted.errors),
            **_accuracy_numbers(validation.roofline),
        },
    }


def _accuracy_numbers(accuracy: Accuracy) -> dict[str, Any]:
    return {
        "decode_seconds": _error_numbers(accuracy.all_decode.values),
        "decode_seconds_by_method": {method: _error_numbers(errors) for method, errors in accuracy.decode.items()},
        "prefill_seconds": _error_numbers(accuracy.prefill),
        "speedup": _error_numbers(accuracy.speedup),
    }


def _error_numbers(values: Sequence[float]) -> dict[str, Any]:
    errors = Errors(list(values))
    return {
        "n": len(errors.values),
        "median_absolute_relative_error": errors.median_absolute,
        "median_relative_error": errors.median_signed,
    }


def _sentence(note: str) -> str:
    return f"{note[0].upper()}{note[1:]}."


def _inside(path: str, folder: Path) -> str:
    """Paths in the folder from there, so that a moved folder gives the same files."""
    return path.replace(f"{folder}/", "")


def _markdown(frame: DataFrame) -> str:
    escaped = frame.map(lambda cell: cell.replace("|", "\\|"))
    return str(escaped.to_markdown(index=False, disable_numparse=True))
