"""Made-up runs with something for each figure: the numbers are plain, so that tests know what must be drawn."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.common.records import Fingerprint, Management, OutputConfig, PromptResult, Session, summarize
from pipeline.common.schemas import SubDir

STREAM: dict[str, Any] = {"kv_method": "stream-llm", "num_init": 4, "num_local": 60}
QUEST: dict[str, Any] = {"kv_method": "quest", "page_size": 16, "top_k": 8, "update_interval": 8}
FULL: dict[str, Any] = {"kv_method": "full"}
CELLS = {"length 500, depth 0.0, 7 digits": (1.0, 1.0), "length 500, depth 1.0, 7 digits": (1.0, 0.0),
         "length 1000, depth 0.0, 7 digits": (0.0, 0.0)}  # fmt: skip


def result(key: str, n_prompt: int, seconds: float, accepted: Sequence[int], **more: Any) -> PromptResult:
    n_new, n_steps = sum(accepted), len(accepted)
    return PromptResult(
        id=key, output_text="made up", output_token_ids=[0] * n_new, n_prompt_tokens=n_prompt, n_new_tokens=n_new,
        n_steps=n_steps, accepted_lengths=list(accepted), prefill_seconds=0.0, decode_seconds=seconds,
        stop_reason="length", score=None, cache_tokens=100.0, **more,
    )  # fmt: skip


def write_run(
    folder: Path,
    results: Sequence[PromptResult],
    method: dict[str, Any] | None = None,
    dataset: str = "humaneval",
    model: str = "Made-Up-1B",
) -> None:
    """A run folder; `method` are the parameters of FAFO, or of another method that it names; None for a baseline."""
    shared = {"model_name": f"models/{model}", "dtype": "float32", "device": "cpu", "batch_size": 1, "seed": 42}
    fafo = {"method": "fafo", "level": 5, "window": 15, "num_guesses": 15}
    of_method = {"method": "baseline"} if method is None else method if "method" in method else fafo | method
    environment: dict[str, Any] = {
        "versions": {}, "device": "cpu", "device_name": "made up", "dtype": "float32", "threads": 1, "git_commit": None,
    }  # fmt: skip
    moment = "2000-01-01T00:00:00.000+00:00"
    management = Management(
        **environment, exp_desc="made up", output_folder_dir=str(folder), sub_dir=SubDir(), start_time=moment,
        end_time=moment, exp_duration=0.0, seed=42, dataset=Fingerprint(n_rows=len(results), sha256="0" * 64),
        sessions=[Session(**environment, start_time=moment, end_time=moment)],
    )  # fmt: skip
    record = OutputConfig(
        pipeline_params=shared | {"n_new_tokens": 12} | of_method,
        eval_params={"dataset": dataset},
        eval_results=summarize(results),
        management=management,
    )
    folder.mkdir(parents=True)
    (folder / "output_config.json").write_text(record.model_dump_json())
    (folder / "raw_results.jsonl").write_text("".join(f"{r.model_dump_json()}\n" for r in results))


def write_runs(folder: Path, dataset: str = "humaneval", model: str = "Made-Up-1B") -> None:
    """A baseline, StreamingLLM at two budgets, Quest, lookahead, and lossy Quest: 12 tokens for each of four prompts.

    By prompt, StreamingLLM of 64 tokens is 1, 2, 3 and 4 times as fast as the baseline, the others twice as fast.
    Windows see half of the cache, of 256 tokens three quarters. Lossy decoding sees a quarter, is 1.5 times as fast,
    and one of its outputs is the baseline's.
    """
    lengths = [100, 120, 300, 500]
    made = [result(str(i), n, 12.0, [1] * 12, window_cache_tokens=None) for i, n in enumerate(lengths)]
    write_run(folder / "baseline", made, None, dataset, model)
    for name, method, accepted in (
        ("stream-64", STREAM, [1, 1, 1, 2, 3, 4]),
        ("stream-256", STREAM | {"num_local": 252}, [3, 3, 3, 3]),
        ("quest", QUEST, [4, 4, 4]),
        ("full", FULL, [6, 6]),
    ):
        seconds = [12.0, 6.0, 4.0, 3.0] if name == "stream-64" else [6.0] * 4
        made = [
            result(
                *(str(i), n, seconds[i], accepted),
                window_cache_tokens=75.0 if name == "stream-256" else 50.0,
                cache_tokens_beside_window=100.0,
            )
            for i, n in enumerate(lengths)
        ]
        write_run(folder / name, made, method, dataset, model)
    made = [lossy_result(str(i), n, n_identical=12 if i == 0 else i) for i, n in enumerate(lengths)]
    write_run(folder / "lossy", made, QUEST | {"method": "lossy"}, dataset, model)


def lossy_result(key: str, n_prompt: int, n_identical: int, seen: float = 0.25) -> PromptResult:
    """Of twelve tokens, so many are the baseline's."""
    found = result(key, n_prompt, 8.0, [1] * 12, window_cache_tokens=None, seen_cache_tokens=100.0 * seen)
    return found.model_copy(update={"output_token_ids": [0] * n_identical + [1] * (12 - n_identical)})


def write_passkey_runs(folder: Path) -> None:
    for name, method in (("baseline", None), ("quest", QUEST)):
        made = [
            result(f"{group} {i}", 500, 1.0, [1] * 12, group=group, scores={"exact": score, "partial": 0.5},
                   window_cache_tokens=50.0 if method else None)
            for group, scores in CELLS.items()
            for i, score in enumerate(scores)
        ]  # fmt: skip
        write_run(folder / name, made, method, "passkey")
