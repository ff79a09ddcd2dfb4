"""Recorded runs laid on hardware that is not at hand: what was done, step by step, priced by a device's roofline.

`project` does it for a folder of runs; `write_files` shows it, beside how well the same predicts this machine.
"""

from pipeline.projection.files import heading, speedups, validation_lines, write_files
from pipeline.projection.projection import LABEL, Group, Projection, project

__all__ = ["LABEL", "Group", "Projection", "heading", "project", "speedups", "validation_lines", "write_files"]
