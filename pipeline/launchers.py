"""The launchers in scripts/<dataset>/ and the configs that they run, which scripts/make_configs.py writes."""

from dataclasses import dataclass
from pathlib import Path

from pipeline.common.schemas import METHODS


@dataclass(frozen=True)
class Method:
    """A way to decode, other than the plain one, with a KV method if it needs one.

    method: such as "fafo": a folder of pipeline/.
    kv_method: without the dash that launchers and run folders don't have either; empty if it needs none.
    config: of the pipeline.
    """

    method: str
    kv_method: str
    config: Path

    @property
    def is_lossy(self) -> bool:
        """Whether its outputs may differ from the baseline's."""
        return self.method == "lossy"

    @property
    def is_opponent(self) -> bool:
        """Whether it is neither FAFO nor the lossy way of its KV method, but what FAFO is compared with."""
        return self.method not in ("fafo", "lossy")

    @property
    def name(self) -> str:
        """How people ask for it: FAFO by its KV method, such as "quest", others by their run folders' name."""
        return self.kv_method if self.method == "fafo" else self.run_name

    @property
    def run_name(self) -> str:
        """How launch.sh names its run folders: such as "fafo-quest", "lossy-quest" or "prompt_lookup"."""
        return "-".join(filter(None, [self.method, self.kv_method]))

    def launcher(self, model: str) -> str:
        """The launcher's path in scripts/<dataset>/, without the ending."""
        return f"{self.method}/" + "_".join(filter(None, [model, self.kv_method]))


def spelt(name: str) -> str:
    """A method's name as `Method.name` has it, without the dashes that the KV method has elsewhere."""
    method, dash, kv_method = name.partition("-")
    return method + dash + kv_method.replace("-", "") if method in METHODS else name.replace("-", "")


def methods_of(root: Path, dataset: str, model: str) -> dict[str, Method]:
    """Those that there are of a model on a dataset, by name: FAFO's first."""
    found = []
    for name in METHODS:
        folder = root / "config" / "pipeline_config" / name / dataset / model
        for config in sorted(folder.rglob("default.json")) if name != "baseline" else []:
            kv_method = "".join(config.parent.relative_to(folder).parts)  # no part: it needs none
            found.append(Method(name, kv_method.replace("-", ""), config))
    return {method.name: method for method in found}


def baseline_config(root: Path, dataset: str, model: str) -> Path:
    """The pipeline config of plain decoding."""
    return root / "config" / "pipeline_config" / "baseline" / dataset / model / "default.json"


def eval_config(root: Path, dataset: str) -> Path:
    """The eval config of a dataset."""
    return root / "config" / "eval_config" / dataset / f"{dataset}.json"


def datasets_of(root: Path) -> list[str]:
    """Those that have launchers."""
    return sorted(folder.parent.name for folder in (root / "scripts").glob("*/baseline"))


def models_of(root: Path, dataset: str) -> set[str]:
    """Those that have a launcher of plain decoding on a dataset."""
    return {path.stem for path in (root / "scripts" / dataset / "baseline").glob("*.sh")}
