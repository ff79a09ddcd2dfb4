"""Measuring whether rounding can explain that a run chose another token.

- Logits are those of one float32 forward pass over the text, with the weights of the run's dtype: how they were rounded
  is the same for all runs, and no noise.
- Noise is twice the largest difference (one for each of two tokens, in opposite directions) between these logits and
  those of plain decoding in the run's dtype, one token a step, over both tokens at the last `NOISE_POSITIONS`
  positions. Errors differ in size and one alone may be near zero by chance, so that a few more of the neighbourhood
  make it an estimate of how large they get. In float32 both are the same arithmetic with other row counts, so that it
  is what another order of sums makes of it.
"""

import gc
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from eval import Sample
from pipeline.common.encoding import Encoder
from pipeline.common.hardware import check_memory, resolve_device
from pipeline.common.models import load_model
from pipeline.common.recorded import RecordedRun
from pipeline.errors import UserError
from pipeline.fafo.decode import generate
from pipeline.fafo.settings import DecodeSettings

NOISE_POSITIONS = 64


@dataclass(frozen=True)
class Choice:
    """Two tokens that might come next after a prompt and `position` tokens of its output."""

    position: int
    tokens: tuple[int, int]


@dataclass(frozen=True)
class Measured:
    """What `PromptAudit` says of a choice, in logits."""

    gap: float
    behind_best: float
    noise: float

    @property
    def is_near_tie(self) -> bool:
        """Whether rounding can have made either token the most likely one."""
        return self.behind_best <= self.noise < math.inf  # false for NaN, which overflow leaves


def measure(run: RecordedRun, choices: dict[str, Choice]) -> dict[str, Measured]:
    """Measure choices within a run's outputs, by prompt id; without those of tokens that the model does not have.

    Raises:
        UserError: the model can't be loaded, or it or the dataset are not by now what the run used.
    """
    _free_memory()
    loaded = load_model(run.pipeline)
    model = loaded.model
    choices = {key: c for key, c in choices.items() if 0 <= min(c.tokens) <= max(c.tokens) < model.config.vocab_size}
    encoder = Encoder(loaded, run.eval, run.pipeline.n_new_tokens)
    texts = {
        sample.id: _text_before(choices[sample.id].position, run, sample, encoder)
        for sample in run.samples()
        if sample.id in choices
    }
    stepwise = {key: _stepwise_logits(model, text)[:, choices[key].tokens] for key, text in texts.items()}
    if model.dtype != torch.float32:  # whose weights take as much memory again
        check_memory(model.config, model.dtype, resolve_device(run.pipeline.device), run.pipeline.n_new_tokens)
        model.float()
    return {key: _compare(_full_logits(model, text), stepwise[key], choices[key]) for key, text in texts.items()}


def _text_before(position: int, run: RecordedRun, sample: Sample, encoder: Encoder) -> list[int]:
    """What the model had read before it chose the token at `position` of the output."""
    result = run.results[sample.id]
    answers: list[str] = []
    start, n_prompt_tokens = 0, result.n_prompt_tokens
    for turn in result.turns:
        n_prompt_tokens = turn.n_prompt_tokens
        if position < start + turn.n_new_tokens:
            break
        start += turn.n_new_tokens
        answers.append(turn.output_text)
    prompt = encoder.encode(sample, answers)
    is_other = not answers and result.prompt_sha256 not in (None, prompt.sha256)
    if is_other or len(prompt.token_ids) != n_prompt_tokens:
        raise UserError(f"{run.folder}: prompt {result.id} has other tokens by now; put back the model's files")
    return prompt.token_ids + result.output_token_ids[start:position]


def _compare(full: Tensor, stepwise: Tensor, choice: Choice) -> Measured:
    """Compare float32 logits [positions, vocabulary] with those of the two tokens [positions, 2]."""
    of_two = full[:, choice.tokens]
    return Measured(
        gap=(of_two[-1, 0] - of_two[-1, 1]).abs().item(),
        behind_best=(full[-1].max() - of_two[-1].min()).item(),
        noise=2 * (stepwise - of_two).abs().max().item(),
    )


@torch.inference_mode()
def _full_logits(model: PreTrainedModel, text: list[int]) -> Tensor:
    """Logits at the last `NOISE_POSITIONS` positions of `text`, in one pass; [positions, vocabulary]."""
    ids = torch.tensor([text], device=model.device)
    output = model(input_ids=ids, use_cache=False, logits_to_keep=min(NOISE_POSITIONS, len(text)))
    return output.logits[0].float().cpu()


def _stepwise_logits(model: PreTrainedModel, text: list[int]) -> Tensor:
    """The same by plain decoding that is made to follow `text`."""
    rows: list[Tensor] = []

    def follow(so_far: list[int], logits: Tensor) -> int:
        rows.append(logits.float().cpu())
        return text[len(so_far)] if len(so_far) < len(text) else 0

    n_rows = min(NOISE_POSITIONS, len(text))
    generate(model, text[: len(text) - n_rows + 1], DecodeSettings(n_new_tokens=n_rows), follow)
    return torch.stack(rows)


def _free_memory() -> None:
    """Give back what an earlier model of this process, of no more use, has left behind."""
    gc.collect()
    torch.cuda.empty_cache()
