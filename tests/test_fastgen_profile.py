"""scripts/fastgen_profile.py on a tiny model: its numbers fit together, and the picture shows them."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.patches import Rectangle

from figures.policies import most_frequent, policy_figure, shares_by_layer
from figures.style import house_style
from pipeline.fafo.selectors.fastgen import POLICIES
from scripts.fastgen_profile import main
from tests.runs import save_tiny_model

LAYERS, KV_HEADS, TARGETS = 2, 2, ("0.3", "0.7", "0.9", "1.0")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


def profiled(model: Path, folder: Path, *more: str) -> dict[str, Any]:
    assert main(["--model", str(model), "--output_dir", str(folder), "--target", *TARGETS, *more]) == 0
    return json.loads((folder / "fastgen.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out") / "new"


@pytest.fixture(scope="module")
def report(model: Path, folder: Path) -> dict[str, Any]:
    rows = folder.parent / "rows.jsonl"
    questions = [
        "What is (2 + 3)? Say it, please.",
        "A longer text; it has more, and more, and more words.",
        "Left out?",
    ]
    rows.write_text("".join(json.dumps({"question": question}) + "\n" for question in questions))
    return profiled(model, folder, "--prompts", f"sums={rows}", "--limit", "2")


def test_only_the_prompts_given_are_profiled(report: dict[str, Any]) -> None:
    assert (report["datasets"], report["n_prompts"]) == (["sums"], 2)
    assert (
        report["mean_prompt_tokens"]
        == len("<user>What is (2 + 3)? Say it, please.<assistant>") / 2
        + len("<user>A longer text; it has more, and more, and more words.<assistant>") / 2
    )


def test_humaneval_is_the_default(model: Path, tmp_path: Path) -> None:
    assert profiled(model, tmp_path, "--limit", "1")["datasets"] == ["humaneval"]


def test_numbers_fit_together(report: dict[str, Any]) -> None:
    assert [of["target"] for of in report["targets"]] == [float(target) for target in TARGETS]
    for of in report["targets"]:
        assert len(of["layers"]) == LAYERS
        assert of["recovered"] >= of["target"]
        for means in [of, *of["layers"]]:
            assert list(means["policies"]) == list(POLICIES)
            assert sum(means["policies"].values()) == pytest.approx(1)
        for name in ("memory_saved", "recovered"):
            assert of[name] == pytest.approx(np.mean([layer[name] for layer in of["layers"]]))
        given = {name for name, share in of["policies"].items() if share}
        assert {name for layer in of["most_frequent"] for name in layer} <= given
    saved = [of["memory_saved"] for of in report["targets"]]
    assert saved == sorted(saved, reverse=True)
    assert saved[0] > saved[-1]
    last = report["targets"][-1]
    assert last["policies"]["full"] == last["recovered"] == 1
    assert last["memory_saved"] == 0
    uniform = [report["uniform"][name] for name in POLICIES]
    assert [of["recovered"] for of in uniform] == sorted(of["recovered"] for of in uniform)
    assert uniform[-1] == {"memory_saved": 0, "recovered": 1}


def test_the_tables_show_the_numbers(report: dict[str, Any], folder: Path) -> None:
    text = (folder / "fastgen.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    for of in report["targets"]:
        shares = [of["memory_saved"], of["recovered"], *of["policies"].values()]
        assert [f"{of['target']:g}", *(f"{share:.1%}" for share in shares)] in rows
    assert Counter(row[0] for row in rows)["1"] == len(TARGETS) + 1  # layer 1 of each, and the target
    assert {path.name for path in folder.iterdir()} == {
        "fastgen.json", "fastgen.md", "fastgen_policies.png", "fastgen_policies.pdf",
    }  # fmt: skip


def test_the_picture_shows_shares_by_layer_and_heads() -> None:
    policies = np.random.default_rng(0).integers(5, size=(7, 4, 3))  # prompts, layers, KV heads
    with house_style():
        figure = policy_figure({"one": policies, "two": policies * 0}, POLICIES)
    left, right = figure.axes[:2]
    bars = [patch for patch in left.patches if isinstance(patch, Rectangle)]
    drawn = np.array([bar.get_height() for bar in bars]).reshape(5, 4)
    for layer in range(4):
        counts = Counter(policies[:, layer].flatten().tolist())
        assert drawn[:, layer].tolist() == pytest.approx([counts[policy] / 21 for policy in range(5)])
    assert [bar.get_y() + bar.get_height() for bar in bars[-4:]] == pytest.approx([1] * 4)
    (cells,) = (mesh for mesh in right.collections if isinstance(mesh, QuadMesh))
    shown = np.asarray(cells.get_array()).reshape(3, 4)
    for layer, head in np.ndindex(4, 3):
        counts = Counter(policies[:, layer, head].tolist())
        assert shown[head, layer] == min(counts, key=lambda policy: (-counts[policy], policy))
    assert left.get_title() == "one"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(POLICIES)
    bar_colours = [bar.get_facecolor() for bar in bars[::4]]
    assert len(set(bar_colours)) == 5
    assert bar_colours == [patch.get_facecolor() for patch in legend.get_patches()]
    assert np.allclose(bar_colours, [cells.to_rgba(np.array([policy]))[0] for policy in range(5)])


def test_of_equally_frequent_policies_the_first_is_shown() -> None:
    policies = np.array([[[1, 2]], [[0, 2]]])
    assert most_frequent(policies, 3).tolist() == [[0, 2]]
    assert shares_by_layer(policies, 3).tolist() == [[0.25], [0.25], [0.5]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "nowhere/at/all"], "nowhere/at/all"),
        (["--prompts", "mine=missing.jsonl"], "mine=missing.jsonl"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    model: Path, tmp_path: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", str(model), "--output_dir", str(tmp_path), *arguments]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert said in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", ["0", "1.5", "much"])
def test_impossible_targets_are_refused(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--output_dir", str(tmp_path), "--target", target])
    assert "--target" in capsys.readouterr().err
