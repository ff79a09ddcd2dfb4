"""Which policy FastGen gives each head of a model, how much of the cache that saves, how much attention it recovers.

    python scripts/fastgen_profile.py --output_dir DIR [--prompts NAME=FILE ..] [--limit 16] [--target 0.9 0.95 0.98]

Each prompt is read once, and the heads of all layers are profiled as in `pipeline/fafo/selectors/fastgen.py`. Writes
fastgen.json, fastgen.md and a picture of the policies over layers and heads, fastgen_policies.png and .pdf. Memory
saved is the share of the prompt's cache entries that a policy does not keep (what a cache made of ragged heads would
save; ours keeps all and reads less), attention recovered the share of the prompt's attention weights on what it keeps;
both are means over heads and prompts.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # where the figures are

import matplotlib
import torch
from pandas import DataFrame
from rich.progress import track
from torch import Tensor

from figures.policies import most_frequent, policy_figure
from figures.style import house_style, save
from pipeline.common.cli import folder, positive
from pipeline.common.logs import adopt_library_logs
from pipeline.common.models import LoadedModel, load_for_measuring
from pipeline.common.prompts import benchmark_samples, encode_prompts
from pipeline.errors import UserError
from pipeline.fafo.attention import fafo_attention_on
from pipeline.fafo.decode import Decoding
from pipeline.fafo.selectors.fastgen import POLICIES, FastGen, Profile, cheapest
from pipeline.fafo.settings import DecodeSettings

NAME = "fastgen"


@dataclass(frozen=True)
class Heads:
    """The KV heads of a model over some prompts.

    recovered, kept: by policy the shares of a prompt's attention and entries, [prompts, layers, kv_heads, policies].
    """

    recovered: Tensor
    kept: Tensor

    @classmethod
    def of(cls, profiles: Sequence[Sequence[Profile]]) -> Self:
        """From the profiles of all layers, for each prompt."""
        recovered = [torch.stack([layer.recovered for layer in layers]) for layers in profiles]
        kept = [torch.stack([layer.n_kept / layer.n_prompt for layer in layers]) for layers in profiles]
        return cls(torch.stack(recovered).cpu(), torch.stack(kept).cpu())

    def given(self, target: float) -> Tensor:
        """The policies that heads are given, as indices of `POLICIES`, [prompts, layers, kv_heads]."""
        return cheapest(self.recovered, self.kept, target)


def profile(loaded: LoadedModel, prompt: list[int], selector: FastGen) -> list[Profile]:
    """Read a prompt of at least two tokens; return the profile of each layer."""
    decoding = Decoding(loaded.model, prompt, DecodeSettings(1, lossy=True, selector=selector))
    with fafo_attention_on(loaded.model):
        decoding.prefill()
    return [view.memory for view in decoding.views]


def summary(heads: Heads, target: float) -> dict[str, Any]:
    """What heads are given for a target, and what that saves and recovers: of all, by layer, and head by head."""
    given = heads.given(target)
    kept, recovered = (values.gather(-1, given.unsqueeze(-1)).squeeze(-1) for values in (heads.kept, heads.recovered))
    layers = [_means(given[:, i], kept[:, i], recovered[:, i]) for i in range(given.shape[1])]
    names = [[POLICIES[policy] for policy in layer] for layer in most_frequent(given.numpy(), len(POLICIES))]
    return {"target": target, **_means(given, kept, recovered), "layers": layers, "most_frequent": names}


def _means(given: Tensor, kept: Tensor, recovered: Tensor) -> dict[str, Any]:
    shares = given.flatten().bincount(minlength=len(POLICIES)) / given.numel()
    return {
        "memory_saved": 1 - float(kept.mean()),
        "recovered": float(recovered.mean()),
        "policies": dict(zip(POLICIES, shares.tolist(), strict=True)),
    }


def uniform(heads: Heads) -> dict[str, dict[str, float]]:
    """What each policy would save and recover if all heads were given it."""
    return {
        name: {"memory_saved": 1 - float(heads.kept[..., i].mean()), "recovered": float(heads.recovered[..., i].mean())}
        for i, name in enumerate(POLICIES)
    }


def as_markdown(report: dict[str, Any]) -> str:
    """All tables: of all heads by target, of one policy for all heads, and for each target by layer."""
    about = (
        f"{report['model']}, {report['n_prompts']} prompts ({', '.join(report['datasets'])}) of "
        f"{report['mean_prompt_tokens']:.0f} tokens on average"
    )
    blocks = [
        f"# FastGen's policies: {about}",
        _table([_row(f"{of['target']:g}", of) for of in report["targets"]], "target"),
        "## The same policy for all heads",
        _table([_row(name, of) for name, of in report["uniform"].items()], "policy"),
    ]
    for of in report["targets"]:
        blocks += [f"## By layer, target {of['target']:g}"]
        blocks += [_table([_row(str(i), layer) for i, layer in enumerate(of["layers"])], "layer")]
    return "\n\n".join(blocks) + "\n"


def _row(name: str, means: dict[str, Any]) -> list[str]:
    shares = [means["memory_saved"], means["recovered"], *means.get("policies", {}).values()]
    return [name, *(f"{share:.1%}" for share in shares)]


def _table(rows: list[list[str]], first: str) -> str:
    names = [first, "memory saved", "attention recovered", *POLICIES]
    return str(DataFrame(rows, columns=names[: len(rows[0])]).to_markdown(index=False, disable_numparse=True))


def share(text: str) -> float:
    """Read an argument that is a share, for `argparse`."""
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"found {text}; it should be above 0 and at most 1")
    return number


def run(args: argparse.Namespace) -> list[Path]:
    """Profile, write, and return the files.

    Raises:
        UserError: no such model, a file of prompts can't be read, or no prompt has two tokens.
    """
    loaded = load_for_measuring(args.model, 1, args.dtype, args.device)
    samples = benchmark_samples(args.prompts)
    named = {given.partition("=")[0] for given in args.prompts} or set(samples)
    prompts = [
        (dataset, prompt.token_ids)
        for dataset in sorted(named)
        for prompt in encode_prompts(samples[dataset][: args.limit], loaded)
        if len(prompt.token_ids) > 1
    ]
    if not prompts:
        raise UserError("--prompts: no prompt has two tokens, of which the first is profiled")
    selector = FastGen().bind(loaded.tokenizer)
    with torch.inference_mode():
        heads = Heads.of([profile(loaded, prompt, selector) for _, prompt in track(prompts, "Prompts")])
    report = {
        "model": Path(args.model).name,
        "dtype": args.dtype,
        "datasets": sorted({dataset for dataset, _ in prompts}),
        "n_prompts": len(prompts),
        "mean_prompt_tokens": sum(len(prompt) for _, prompt in prompts) / len(prompts),
        "local_ratio": selector.local_ratio,
        "frequent_ratio": selector.frequent_ratio,
        "uniform": uniform(heads),
        "targets": [summary(heads, target) for target in args.target],
    }
    pictured = {
        f"target {of['target']:g}: {of['memory_saved']:.0%} saved, {of['recovered']:.1%} recovered": heads.given(
            of["target"]
        ).numpy()
        for of in report["targets"]
    }
    args.output_dir.mkdir(parents=True, exist_ok=True)
    as_json, markdown = args.output_dir / f"{NAME}.json", args.output_dir / f"{NAME}.md"
    as_json.write_text(json.dumps(report, indent=2) + "\n")
    markdown.write_text(as_markdown(report))
    with house_style():
        return [as_json, markdown, *save(policy_figure(pictured, POLICIES), args.output_dir, f"{NAME}_policies")]


def main(argv: list[str] | None = None) -> int:
    """Profile a model; exit code 2 for what the user can put right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/SmolLM2-135M-Instruct", help="hub id or folder")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument(
        "--prompts", action="append", default=[], metavar="NAME=FILE",
        help="a dataset of your own, JSONL with question, prompt or turns, instead of HumanEval (repeatable)",
    )  # fmt: skip
    parser.add_argument("--limit", type=positive, default=16, help="prompts of each dataset, from the first")
    parser.add_argument("--target", type=share, nargs="+", default=[0.9, 0.95, 0.98], help="attention to recover")
    parser.add_argument("--output_dir", type=folder, required=True, help="where the files go")
    args = parser.parse_args(argv)
    adopt_library_logs()
    matplotlib.use("agg")
    try:
        files = run(args)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"error: {error.filename} can't be written ({error.strerror})\n")
        return 2
    sys.stdout.write("".join(f"wrote {file}\n" for file in files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
