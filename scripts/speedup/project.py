"""Project recorded runs on hardware that is not at hand, and say how well the same predicts this machine.

    python scripts/speedup/project.py <output_dir> [--device a100,h100,my_gpu.json] [--shape llama-3.1-8b]

Looks for finished runs in the folder and below it, as compute_speedup.py does, and lays the rows, contexts and accepted
lengths of every step on a roofline of each device: of weights, keys and values, arithmetic and launches. Writes
projection.md, projection.json and the figure projection.png (and .pdf) to the folder. Nothing of it is measured on the
devices, and all of it says "projected".

A JSON file describes another device: {"name": "my GPU", "peak": {"float16": 1e14}, "bandwidth": 1e12, "memory": 24e9},
in operations and bytes a second and bytes, optionally with launch_seconds, bandwidth_efficiency and peak_efficiency.
With --shape, acceptance recorded on one model is laid on the cost of another.
"""

import argparse
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import matplotlib
from rich.console import Console
from rich.text import Text

from figures.projection import projected_speedups
from figures.style import house_style, save
from pipeline.common.cli import folder
from pipeline.comparison import Table, compare_runs
from pipeline.errors import UserError, shown
from pipeline.projection import Projection, heading, project, speedups, validation_lines, write_files
from pipeline.projection.devices import CPU, DEVICES, DTYPES, Device, device_named
from pipeline.projection.shapes import SHAPES, Shape
from scripts.speedup.compute_speedup import as_rich

WIDTH = 120  # where the output is no terminal
OPTIONS = ("bandwidth_efficiency", "peak_efficiency", "launch_seconds")


def main(argv: list[str] | None = None) -> int:
    """Write and print the projection; exit code 2: there is nothing to project, or something the user can put right."""
    args = _parser().parse_args(argv)
    try:
        return _run(args)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
    except OSError as error:
        sys.stderr.write(f"error: {error.filename} can't be written ({error.strerror})\n")
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_dir", type=folder, help="a folder with the run folders of a baseline and others")
    parser.add_argument(
        "--device", default=",".join([*DEVICES, CPU]), metavar="NAMES",
        help=f"some of {', '.join(DEVICES)}, {CPU} (this machine, by its measured curve), JSON files; default: these",
    )  # fmt: skip
    parser.add_argument("--shape", choices=SHAPES, help="of the model; default: that of each run's own")
    parser.add_argument("--dtype", choices=DTYPES, default="float16", help="on the devices (default: %(default)s)")
    parser.add_argument(
        "--bandwidth-efficiency", type=float, help="share of the bandwidth that is reached, of each device"
    )
    parser.add_argument("--peak-efficiency", type=float, help="share of the peak that is reached, of each device")
    parser.add_argument("--launch-seconds", type=float, help="time to launch a kernel, of each device")
    return parser


def _run(args: argparse.Namespace) -> int:
    names = list(dict.fromkeys(args.device.split(",")))
    devices = [_adjusted(device_named(name), args) for name in names if name != CPU]
    if twice := [name for name, n in Counter(device.name for device in devices).items() if n > 1]:
        raise UserError(f"--device: two devices are named {shown(twice[0])}; give them names of their own")
    shape = Shape.of(args.shape, SHAPES[args.shape]) if args.shape else None
    overview = compare_runs(args.output_dir)
    projection = project(overview, devices, args.dtype, CPU in names, shape)
    for refusal in [*overview.refused, *projection.refused]:
        sys.stderr.write(f"skipped {refusal.what}: {refusal.reason}\n")
    if not projection.groups:
        raise UserError(f"{args.output_dir}: no finished runs there or below, with a baseline, that can be projected")
    write_files(projection, args.output_dir)
    matplotlib.use("agg")
    with house_style():
        save(projected_speedups(projection), args.output_dir, "projection")
    show(projection, args.output_dir)
    return 0


def _adjusted(device: Device, args: argparse.Namespace) -> Device:
    """With what the command line says of all devices."""
    for name in OPTIONS:
        value = getattr(args, name)
        if value is not None:
            try:
                device = replace(device, **{name: value})
            except ValueError as error:
                said = str(error).splitlines()[2].strip().removeprefix("Input ").partition(" [")[0]
                raise UserError(f"--{name.replace('_', '-')}: found {value}; {said}") from None
    return device


def show(projection: Projection, output_dir: Path) -> None:
    """Print the tables, and how well this machine is predicted."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for group in projection.groups:
        console.print(as_rich(Table(heading(group), speedups(group))))
        for note in group.notes:
            console.print(Text(note))
    for validation in projection.validations:
        console.print(Text(f"Validation on {validation.machine}:"))
        for line in validation_lines(validation):
            console.print(Text(f"- {line}"))
    console.print(Text(f"The same as Markdown and JSON, with a figure: {output_dir}"), soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
