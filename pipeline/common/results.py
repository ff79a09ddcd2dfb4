"""The folder of a run: refusing another experiment's, recording as prompts complete, resuming."""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.common.config import Experiment
from pipeline.common.locks import holding, holding_record
from pipeline.common.raw_results import append_result, as_line, drop_partial_line, read_results
from pipeline.common.recorded import read_record
from pipeline.common.records import (
    Environment,
    EvalResults,
    Fingerprint,
    Management,
    OutputConfig,
    PromptResult,
    summarize,
)
from pipeline.common.schemas import RECORD_LOCK_NAME
from pipeline.common.sessions import add_session, close_killed_sessions, end_run, end_session, new_session
from pipeline.common.shard import WHOLE, Shard, all_shards
from pipeline.errors import UserError
from pipeline.files import write_whole

log = logging.getLogger(__name__)


@dataclass
class RunFolder:
    """A run's folder. Nothing is written before `open`; `inspect` only reads.

    Several processes may share a run. Each records results in a file of its own, all update the one record, and the
    process that finds the last prompt answered merges the files and writes the summary.

    sample_ids: what the run is to answer, in order. shard: which of them this process answers.
    results: what is recorded by all processes, in the order of files and of recording.
    """

    path: Path
    experiment: Experiment
    exp_desc: str
    fingerprint: Fingerprint
    sample_ids: Sequence[str]
    shard: Shard = WHOLE
    results: list[PromptResult] = field(default_factory=list)
    record: OutputConfig | None = None

    @property
    def output_config(self) -> Path:
        """The run's record and summary."""
        return self.path / self.experiment.sub_dir.output_config

    @property
    def raw_results(self) -> Path:
        """One line a prompt."""
        return self.path / self.experiment.sub_dir.raw_results

    @property
    def own_results(self) -> Path:
        """The same, of this process's prompts."""
        return self.shard.own(self.raw_results)

    @property
    def unanswered(self) -> list[str]:
        """Ids without a result."""
        done = {result.id for result in self.results}
        return [sample_id for sample_id in self.sample_ids if sample_id not in done]

    @property
    def pending(self) -> list[str]:
        """Ids without a result in this process's shard."""
        unanswered = set(self.unanswered)
        return [sample_id for sample_id in self.shard.of(self.sample_ids) if sample_id in unanswered]

    @property
    def complete(self) -> bool:
        """Whether every prompt is answered and the summary written."""
        return self.record is not None and self.record.eval_results is not None and not self.unanswered

    def inspect(self) -> None:
        """Read what the folder holds already.

        Raises:
            UserError: it holds another experiment, files of other origin under our names, or a corrupt line.
        """
        # Of a run there is a lock, and then another process may be writing.
        is_run = (self.path / RECORD_LOCK_NAME).exists()
        with holding_record(self.path) if is_run else nullcontext():
            self._inspect()

    def _inspect(self) -> None:
        self.results, self.record = [], None
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--output_folder_dir {self.path}: is a file; name a folder, new or of this experiment")
        if self.output_config.exists():
            self.record = self._read_record()
            self._refuse_other_experiment(self.record)
            self.results = self._read_results()
            return
        input_config = self.path / self.experiment.sub_dir.input_config
        for found in (self.raw_results, input_config):
            if found.exists():
                raise UserError(
                    f"{found}: exists without {self.output_config.name}, so it is no run to resume; "
                    "name another --output_folder_dir"
                )

    @contextmanager
    def open(self, environment: Environment | None, ignored_generation_config: Sequence[str] = ()) -> Iterator[None]:
        """Hold this process's shard of the folder for one session: create or resume it.

        environment: what this session runs on; None if all prompts are answered and only the summary lacks.
        ignored_generation_config: see `Management`.

        Raises:
            UserError: another process holds the folder, or see `inspect`.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with holding(self.path, self.shard):
            with holding_record(self.path):
                self._inspect()
                self._begin(environment, ignored_generation_config)
            yield

    def append(self, result: PromptResult) -> None:
        """Record one prompt; on return it is on the disk."""
        append_result(self.own_results, result)
        self.results.append(result)

    def finish(self, before_summary: Callable[[], None] = lambda: None) -> EvalResults | None:
        """End this session; if all prompts are answered, merge and write the summary, which marks the run as complete.

        Args:
            before_summary: called once all results are there, by the process that completes the run.

        Returns: the summary, or None to processes that others complete the run after, or have completed it before.
        """
        with holding_record(self.path):
            self._inspect()
            assert self.record is not None, "finish() outside of open()"
            is_last = self.record.eval_results is None and not self.unanswered
            end_session(self.record.management, self.shard)
            if is_last:
                self._merge()
                before_summary()
                end_run(self.record.management)
                self.record.eval_results = summarize(self.results)
            self._write_record()
            return self.record.eval_results if is_last else None

    def _merge(self) -> None:
        """Bring the files of several processes together into one, in the order of the dataset."""
        _, *parts = all_shards(self.raw_results)
        if parts:
            place = {sample_id: i for i, sample_id in enumerate(self.sample_ids)}
            self.results.sort(key=lambda result: place[result.id])
            write_whole(self.raw_results, b"".join(map(as_line, self.results)))
        for part in parts:
            part.unlink()

    def _read_results(self) -> list[PromptResult]:
        """Each prompt's first result; one in two files was being merged, or run in another division."""
        found: dict[str, PromptResult] = {}
        for path in all_shards(self.raw_results):
            for result in read_results(path, self.sample_ids):
                found.setdefault(result.id, result)
        return list(found.values())

    def _begin(self, environment: Environment | None, ignored_generation_config: Sequence[str]) -> None:
        """Write the record first: from then on the folder is known to be this experiment's."""
        if self.record is None:
            assert environment is not None, "a new run has an environment"
            self.record = self._new_record(environment)
        else:
            drop_partial_line(self.own_results)
            close_killed_sessions(self.record.management, self.shard, self.raw_results)
            if self.record.management.exp_desc != self.exp_desc:
                log.warning(
                    "this run was begun with --exp_desc %r, which it keeps; %r is not recorded",
                    self.record.management.exp_desc,
                    self.exp_desc,
                )
            self.record.eval_results = None
            if environment is not None:
                add_session(self.record.management, environment, self.shard)
        if environment is not None:
            self.record.management.ignored_generation_config = list(ignored_generation_config)
        self._write_record()
        folder = self.path / self.experiment.sub_dir.input_config
        folder.mkdir(parents=True, exist_ok=True)
        for file, name in (
            (self.experiment.pipeline_file, "input_pipeline_config.json"),
            (self.experiment.eval_file, "input_eval_config.json"),
        ):
            if not (folder / name).exists():
                write_whole(folder / name, file.content)

    def _new_record(self, environment: Environment) -> OutputConfig:
        session = new_session(environment, self.shard)
        return OutputConfig(
            pipeline_params=self.experiment.pipeline_params(),
            eval_params=self.experiment.eval.model_dump(),
            eval_results=None,
            management=Management(
                **dict(environment),
                exp_desc=self.exp_desc,
                output_folder_dir=str(self.path),
                sub_dir=self.experiment.sub_dir,
                start_time=session.start_time,
                end_time=None,
                exp_duration=None,
                seed=self.experiment.pipeline.seed,
                dataset=self.fingerprint,
                sessions=[session],
            ),
        )

    def _write_record(self) -> None:
        assert self.record is not None
        text = json.dumps(self.record.model_dump(mode="json"), indent=2) + "\n"
        write_whole(self.output_config, text.encode())

    def _read_record(self) -> OutputConfig:
        try:
            return read_record(self.output_config)
        except UserError as error:
            raise UserError(f"{self.path}: its {error}; name another --output_folder_dir") from None

    def _refuse_other_experiment(self, record: OutputConfig) -> None:
        pairs = (
            (
                "pipeline_params",
                self.experiment.pipeline.defaults() | record.pipeline_params,
                self.experiment.pipeline_params(),
            ),
            ("eval_params", self.experiment.eval.defaults() | record.eval_params, self.experiment.eval.model_dump()),
            ("dataset", record.management.dataset.model_dump(), self.fingerprint.model_dump()),
        )
        for section, theirs, ours in pairs:
            for key in [*ours, *(key for key in theirs if key not in ours)]:
                if theirs.get(key) != ours.get(key):
                    raise UserError(
                        f"{self.path}: holds another experiment: {section}.{key} is {_show(theirs, key)} "
                        f"there and {_show(ours, key)} here; name another --output_folder_dir"
                    )


def _show(values: dict[str, Any], key: str) -> str:
    return json.dumps(values[key]) if key in values else "absent"
