"""Finished runs beside their baselines: what may be compared, the statistics of it, and the tables.

`compare_runs` reads a folder; `tables` and `write_files` show what it found.
"""

from pipeline.comparison.comparison import Comparison, Pair
from pipeline.comparison.files import write_files
from pipeline.comparison.overview import Overview, Refusal, compare_runs
from pipeline.comparison.runs import Run
from pipeline.comparison.tables import Table, tables

__all__ = ["Comparison", "Overview", "Pair", "Refusal", "Run", "Table", "compare_runs", "tables", "write_files"]
