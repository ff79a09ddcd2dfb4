"""The page: tables, figures and outputs in one file that needs nothing else."""

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from itertools import accumulate
from mimetypes import guess_type
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from pipeline.comparison import Comparison, Overview, tables
from pipeline.comparison.files import inside
from pipeline.report.browser import browser_json
from pipeline.report.outputs import SOURCES, Json, source_shares

FIGURES = "figures"  # the folder with the figures, in the runs' own
_IMAGES = (".png", ".svg")


def render(overview: Overview, max_prompts: int) -> str:
    """The whole page; the same for the same runs and figures.

    Raises:
        OSError: a figure can't be read.
    """
    environment = Environment(
        loader=PackageLoader("pipeline.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"hash": _hash, "show": _show}
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}  # plain ASCII
    return environment.get_template("page.html").render(
        title=f"Runs in {overview.folder.resolve().name}",
        style=_own("page.css"),
        script=_own("page.js"),
        setups=_setups(overview.comparisons),
        tables=tables(overview),
        shares=[(title, _shares(group)) for title, group in overview.datasets if len(group) > 1],
        sources=SOURCES,
        conditions=overview.datasets,
        figures=[_figure(path) for path in sorted((overview.folder / FIGURES).glob("*")) if path.suffix in _IMAGES],
        refused=[
            tuple(inside(text, overview.folder) for text in (refusal.what, refusal.reason))
            for refusal in [*overview.refused, *overview.overall_refused]
        ],
        data=browser_json(overview, max_prompts),
    )


def _own(name: str) -> str:
    """One of our files."""
    return (files("pipeline.report") / "templates" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """What allows an inline style or script of this text in a content security policy."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _show(value: object) -> str:
    """A value of a config or record; none is a dash."""
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value)


def _figure(path: Path) -> Json:
    mime_type, _ = guess_type(path.name)
    name = path.stem.replace("_", " ")
    return {"name": name, "uri": f"data:{mime_type};base64,{b64encode(path.read_bytes()).decode()}"}


def _setups(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """What the runs ran on, each once."""
    setups: list[dict[str, Any]] = []
    for comparison in comparisons:
        session = comparison.run.record.management.sessions[-1]
        setup = comparison.run.setup | session.versions | {"git_commit": session.git_commit}
        if setup not in setups:
            setups.append(setup)
    return setups


def _shares(group: Sequence[Comparison]) -> list[tuple[str, list[tuple[str, float, float]]]]:
    """Where each method's tokens came from: for each source its letter, its share, and the shares before it."""
    rows = []
    for comparison in group:
        if not comparison.is_baseline:
            shares = source_shares(comparison.run.results.values())
            before = accumulate(shares.values(), initial=0.0)
            parts = [(letter, share, start) for (letter, share), start in zip(shares.items(), before, strict=False)]
            rows.append((comparison.method, parts))
    return rows
