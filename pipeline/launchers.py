"""The launchers in scripts/<dataset>/ and the configs that they run, which scripts/make_configs.py writes."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Method:
    """FAFO or lossy decoding with a KV method, which launchers and run folders spell without a dash.

    method: "fafo" or "lossy".
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
    def name(self) -> str:
        """How people ask for it: such as "quest" or "lossy-quest"."""
        return f"lossy-{self.kv_method}" if self.is_lossy else self.kv_method

    @property
    def run_name(self) -> str:
        """How launch.sh names its run folders."""
        return f"{self.method}-{self.kv_method}"

    def launcher(self, model: str) -> str:
        """The launcher's path in scripts/<dataset>/, without the ending."""
        return f"{self.method}/{model}_{self.kv_method}"


def spelt(name: str) -> str:
    """A method's name as `Method.name` has it, without the dashes that the KV method has elsewhere."""
    lossy = "lossy-" if name.startswith("lossy-") else ""
    return lossy + name.removeprefix(lossy).replace("-", "")


def methods_of(root: Path, dataset: str, model: str) -> dict[str, Method]:
    """Those that there are of a model on a dataset, by name: FAFO's first."""
    configs = root / "config" / "pipeline_config"
    methods = [
        Method(name, config.parent.name.replace("-", ""), config)
        for name in ("fafo", "lossy")
        for config in sorted((configs / name / dataset / model).glob("*/default.json"))
    ]
    return {method.name: method for method in methods}


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
