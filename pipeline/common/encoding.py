"""From a question, or a conversation so far, to the token ids that a model gets."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from eval import EvalParams, Sample
from eval.conversation import merge_system, plain_conversation, stop_strings
from pipeline.common.models import LoadedModel
from pipeline.errors import UserError
from pipeline.fafo.support import PromptTooLongError, check_prompt, context_limit

Messages = list[dict[str, str]]


def decode(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
    """The text of tokens as it is: some tokenizers (Llama-3's) would take spaces out of it by default, also of code."""
    text = tokenizer.decode(
        list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
    )
    return str(text)


@dataclass(frozen=True)
class Prompt:
    """A sample and the token ids that the model gets for it. n_cut_tokens: what was cut out of the middle."""

    sample: Sample
    token_ids: list[int]
    n_cut_tokens: int = 0

    @property
    def sha256(self) -> str:
        """Tells it from other prompts."""
        return hashlib.sha256(repr(self.token_ids).encode()).hexdigest()


@dataclass(frozen=True)
class Encoder:
    """How a model gets its prompts: through its chat template, or else as plain text or a FastChat conversation.

    n_new_tokens: what a prompt whose middle is cut leaves room for.
    """

    loaded: LoadedModel
    params: EvalParams
    n_new_tokens: int

    def encode(self, sample: Sample, answers: Sequence[str] = ()) -> Prompt:
        """Tokenize the turn that follows these `answers`.

        Raises:
            UserError: the template fails, the model needs one, or the prompt is empty, too long, or has ids that the
                model does not know.
        """
        try:
            prompt = self._encode(sample, answers)
            check_prompt(prompt.token_ids, self.loaded.model.config)
        except UserError as error:
            raise type(error)(f"prompt {sample.id}: {error}") from None
        return prompt

    def answer(self, token_ids: Sequence[int]) -> str:
        """The text of an answer, without what shows that the model went on to play the user."""
        text = decode(self.loaded.tokenizer, token_ids, skip_special_tokens=True)
        if self._is_plain and self.params.conversation_template:
            for stop in stop_strings(self.params.conversation_template):
                if (end := text.find(stop)) > 0:  # FastChat too keeps an answer that begins with one
                    text = text[:end]
            text = text.strip()
        return text

    def _encode(self, sample: Sample, answers: Sequence[str]) -> Prompt:
        if not sample.messages or (self._is_plain and not self.params.conversation_template):
            if not sample.text or sample.later_turns:
                raise UserError(
                    f"{self.loaded.tokenizer.name_or_path} has no chat template, which {self.params.dataset} needs; "
                    "name one of FastChat's in eval_params.conversation_template"
                )
            return self._fit(sample, [{"content": sample.text}], self._encode_plain)
        messages = [dict(message) for message in sample.messages]
        for answer, question in zip(answers, sample.later_turns, strict=False):
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": question}]
        return self._fit(sample, messages, self._encode_chat)

    @property
    def _is_plain(self) -> bool:
        return self.loaded.tokenizer.chat_template is None

    def _encode_plain(self, messages: Messages) -> list[int]:
        return self.loaded.tokenizer(messages[0]["content"])["input_ids"]

    def _encode_chat(self, messages: Messages) -> list[int]:
        if self._is_plain:
            assert self.params.conversation_template is not None
            return self.loaded.tokenizer(plain_conversation(messages, self.params.conversation_template))["input_ids"]
        try:
            text = self._apply_template(messages)
        except Exception as error:  # a template is a program: it may raise anything
            merged = merge_system(messages)
            if merged == messages:
                raise UserError(f"the chat template of {self.loaded.tokenizer.name_or_path} fails: {error}") from error
            return self._encode_chat(merged)  # it may know no system role
        return self.loaded.tokenizer(text, add_special_tokens=False)["input_ids"]  # the template writes them out

    def _apply_template(self, messages: Messages) -> str:
        text = self.loaded.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False, **self.loaded.chat_template_kwargs
        )
        return str(text)

    def _fit(self, sample: Sample, messages: Messages, encode: Callable[[Messages], list[int]]) -> Prompt:
        """Encode, and cut tokens out of the middle of the longest message if that is too long and may be done.

        Source: Bai et al., "LongBench", 2023, which cuts prompts like this.
        """
        token_ids = encode(messages)
        most = self.params.max_prompt_tokens
        if self.params.long_prompts == "refuse":
            if most is not None and len(token_ids) > most:
                raise PromptTooLongError(
                    f"it has {len(token_ids)} tokens, more than eval_params.max_prompt_tokens, {most}; "
                    'raise that, or have it cut with eval_params.long_prompts "cut_middle", where the dataset lets you'
                )
            return Prompt(sample, token_ids)
        limit = self._limit(sample)
        if limit is None or len(token_ids) <= limit:
            return Prompt(sample, token_ids)
        tokenizer, n_whole = self.loaded.tokenizer, len(token_ids)
        longest = max(messages, key=lambda message: len(message["content"]))
        content = tokenizer(longest["content"], add_special_tokens=False)["input_ids"]
        n_kept = len(content)
        while len(token_ids) > limit:  # more than once where the new seam is tokenized into more tokens
            n_kept -= len(token_ids) - limit
            if n_kept < 2:
                raise PromptTooLongError(f"it can't be cut to {limit} tokens: that leaves nothing of it")
            half = n_kept // 2
            longest["content"] = decode(tokenizer, content[:half]) + decode(tokenizer, content[half - n_kept :])
            token_ids = encode(messages)
        return Prompt(sample, token_ids, n_cut_tokens=n_whole - len(token_ids))

    def _limit(self, sample: Sample) -> int | None:
        """Most tokens of a prompt that may be cut."""
        limits = [self.params.max_prompt_tokens]
        model_limit = context_limit(self.loaded.model.config)
        if model_limit is not None:
            limits.append(model_limit - self.most_new_tokens(sample))
        return min((limit for limit in limits if limit is not None), default=None)

    def most_new_tokens(self, sample: Sample) -> int:
        """Most tokens of an answer."""
        return min(self.n_new_tokens, sample.n_new_tokens or self.n_new_tokens)
