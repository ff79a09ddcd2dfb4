"""A folder of made-up runs, with texts that a byte-level tokenizer makes tokens of."""

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from pipeline.common.records import Fingerprint, Management, OutputConfig, PromptResult, Session, Turn, summarize
from pipeline.common.schemas import SubDir

ATTACK = '</script><script>alert(1)</script><img src=x onerror="alert(2)">\u2028'
STEP = 4  # tokens that a FAFO step accepts
MIXED = "x = 'é😀'\n"
Answers = Mapping[str, tuple[str, ...]]  # by prompt; the texts of its turns
ENVIRONMENT: dict[str, Any] = {
    "versions": {"torch": "2.13.0", "transformers": "5.2.0"}, "device": "cpu", "device_name": "A CPU",
    "dtype": "float32", "threads": 2, "git_commit": None,
}  # fmt: skip


class Maker:
    """Writes the runs of one model."""

    def __init__(self, folder: Path, model: Path | str, tokenizer: Path) -> None:
        self.folder = folder
        self.model = str(model)
        self.tokenizer = AutoTokenizer.from_pretrained(tokenizer)

    def result(self, prompt: str, *turns: str, is_plain: bool = False) -> PromptResult:
        """Answers whose guesses come from the prompt, the output, the window and the ranking in turn."""
        token_ids = [self.tokenizer(text)["input_ids"] for text in turns]
        all_ids = list(chain.from_iterable(token_ids))
        lengths, sources = [], ""
        for n in map(len, token_ids):
            step = 1 if is_plain else STEP
            lengths += [step] * (n // step) + [n % step] * (n % step > 0)
            sources += "".join("m" if i % step == step - 1 or i == n - 1 else "pows"[i // step % 4] for i in range(n))
        parts = [
            Turn(output_text=text, n_prompt_tokens=9, n_reused_tokens=0, n_new_tokens=len(ids), stop_reason="eos")
            for text, ids in zip(turns, token_ids, strict=True)
        ]
        return PromptResult(
            id=prompt, output_text="\n\n".join(turns), output_token_ids=all_ids, n_prompt_tokens=9,
            n_new_tokens=sum(lengths), n_steps=len(lengths), accepted_lengths=lengths, prefill_seconds=0.5,
            decode_seconds=0.1 * len(lengths), stop_reason="eos", score=1.0, scores={"f1": 1.0}, cache_tokens=9.0,
            window_cache_tokens=None, token_sources=sources, turns=parts if len(turns) > 1 else [],
        )  # fmt: skip

    def write(self, name: str, results: list[PromptResult], dataset: str = "humaneval", **params: Any) -> Path:
        """A finished run; it is a baseline unless `params` says otherwise."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        record = OutputConfig(
            pipeline_params={
                "method": "baseline", "model_name": self.model, "dtype": "float32", "device": "cpu",
                "n_new_tokens": 99, "batch_size": 1, **params,
            },
            eval_params={"dataset": dataset},
            eval_results=summarize(results),
            management=Management(
                **ENVIRONMENT, exp_desc="", output_folder_dir="", sub_dir=SubDir(), start_time="", end_time="",
                exp_duration=1.0, seed=42, dataset=Fingerprint(n_rows=len(results), sha256="0" * 64),
                sessions=[Session(**ENVIRONMENT, start_time="", end_time="")],
            ),
        )  # fmt: skip
        (folder / "output_config.json").write_text(record.model_dump_json())
        (folder / "raw_results.jsonl").write_text("".join(result.model_dump_json() + "\n" for result in results))
        return folder

    def write_pair(self, dataset: str, plain: Answers, fast: Answers) -> None:
        """A baseline and a FAFO run with these answers."""
        for name, answers in (("baseline", plain), ("stream", fast)):
            results = [self.result(key, *turns, is_plain=name == "baseline") for key, turns in answers.items()]
            of_method = {"method": "fafo", "kv_method": "stream-llm"} if name == "stream" else {}
            self.write(f"{dataset}/{name}", results, dataset, **of_method)


def write_all(folder: Path, tokenizer: Path, model: Path | str | None = None) -> Maker:
    """Two datasets: one with a difference and an attack, one of conversations; and a run without a baseline."""
    maker = Maker(folder, model or tokenizer, tokenizer)
    plain = {"a/2": (MIXED,), "a/10": ("Say: " + MIXED,), ATTACK: (ATTACK,)}
    maker.write_pair("humaneval", plain, plain | {"a/10": ("Say: y = 1\n",)})
    turns = {"chat": ("one\n", "two é\n")}
    maker.write_pair("mtbench", turns, turns)
    maker.write("alone", [maker.result("a/2", MIXED)], method="fafo", kv_method="quest", dtype="float16")
    return maker
