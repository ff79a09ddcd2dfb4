"""Chat with a model in the terminal, decoded by FAFO.

    python scripts/chat.py [--model models/SmolLM2-135M-Instruct] [--kv_method quest --set page_size=16]
    echo "Hello" | python scripts/chat.py

Tokens that came free, as guesses that proved right, are green. Ctrl-C interrupts an answer, Ctrl-D or /exit ends,
/reset starts anew. Without a terminal each line of standard input is a turn, and answers are printed plainly.
"""

import argparse
import io
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from eval import Sample
from pipeline.common.access import redact
from pipeline.common.config import Experiment, Override, load_experiment, parse_override
from pipeline.common.encoding import decode
from pipeline.common.json_file import read_json
from pipeline.common.logs import adopt_library_logs
from pipeline.common.models import LoadedModel, load_model
from pipeline.common.paths import REPO_ROOT
from pipeline.common.prompts import encode_prompts
from pipeline.common.schemas import FafoParams
from pipeline.errors import UserError
from pipeline.fafo.decode import Decoding
from pipeline.fafo.selectors import SELECTORS
from pipeline.fafo.settings import DecodeSettings

PIPELINE_CONFIG = REPO_ROOT / "config/pipeline_config/fafo/humaneval/SmolLM2-135M-Instruct/stream-llm/default.json"
EVAL_CONFIG = REPO_ROOT / "config/eval_config/humaneval/humaneval.json"  # not used, but experiments have one
FREE_STYLE = "green"
OPTIONS = ("model_name", "level", "window", "num_guesses", "n_new_tokens", "dtype", "device")


class CharacterStream:
    """Turns token ids, fed one by one, into whole characters: what a token leaves open waits for the next ones."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.decode = partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        self.ids: list[int] = []
        self.context = 0  # where the latest piece starts: some tokenizers drop the space of a text's first word
        self.shown = 0

    def feed(self, *tokens: int, last: bool = False) -> str:
        """Return the characters that `tokens` complete; with `last`, broken ones as replacement characters too."""
        self.ids += tokens
        known, text = (str(self.decode(self.ids[self.context : end])) for end in (self.shown, None))
        if len(text) <= len(known) or (text.endswith("\N{REPLACEMENT CHARACTER}") and not last):
            return ""
        self.context, self.shown = self.shown, len(self.ids)
        return text[len(known) :]


def coloured(stream: CharacterStream, tokens: Sequence[int]) -> Text:
    """The text of a step's new tokens. All but the last, which the model gives in any case, came free."""
    *free, own = tokens
    return Text.assemble(*((stream.feed(token), FREE_STYLE) for token in free), stream.feed(own))


@dataclass
class Chat:
    """A conversation. What the cache holds of a turn is taken over by the next one."""

    loaded: LoadedModel
    settings: DecodeSettings
    messages: list[dict[str, str]] = field(default_factory=list)
    latest: Decoding | None = None

    @property
    def n_reused(self) -> int:
        """How many tokens of the latest prompt were in the cache."""
        return self.latest.n_reused if self.latest else 0

    def ask(self, text: str, on_step: Callable[[list[int]], None]) -> None:
        """Answer `text`; when interrupted, what was said so far counts as the answer. `UserError`: text too long."""
        self.messages.append({"role": "user", "content": text})
        (prompt,) = encode_prompts([Sample("of this turn", tuple(self.messages), text, {})], self.loaded)
        decoding = Decoding(self.loaded.model, prompt.token_ids, self.settings, earlier=self.latest)
        self.latest = decoding
        try:
            with torch.inference_mode():
                decoding.run(on_step)
        finally:
            answer = decode(self.loaded.tokenizer, decoding.text[decoding.n_prompt :], skip_special_tokens=True)
            self.messages.append({"role": "assistant", "content": answer})


class Answer:
    """Shows an answer as it grows: finished lines scroll away, below them are the open line and the figures."""

    def __init__(self, chat: Chat, console: Console, live: bool) -> None:
        self.stream = CharacterStream(chat.loaded.tokenizer)
        self.chat, self.console, self.open_line = chat, console, Text()
        self.n_tokens = self.n_steps = 0
        self.started = time.perf_counter()
        self.live = Live(Text("reading ..", "dim"), console=console, transient=True) if live else None

    def run(self, text: str) -> None:
        """Ask the model; Ctrl-C ends the answer, not the program."""
        with suppress(KeyboardInterrupt), self.live or nullcontext():
            self.chat.ask(text, self.on_step)
        self.open_line.append(self.stream.feed(last=True).rstrip("\N{REPLACEMENT CHARACTER}"))  # one that was cut off
        figures = Text(f"{self.figures()}, {self.chat.n_reused} prompt tokens from the cache\n", "dim")
        self.console.print(self.open_line, figures, sep="\n", soft_wrap=True)

    def on_step(self, tokens: list[int]) -> None:
        """Show a step's new tokens."""
        self.n_tokens += len(tokens)
        self.n_steps += 1
        self.open_line.append(coloured(self.stream, tokens))
        if self.live:
            *finished, self.open_line = self.open_line.wrap(self.console, self.console.width) or [Text()]
            for line in finished:
                self.console.print(line)
            self.live.update(Group(self.open_line, Text(self.figures(), "dim")))

    def figures(self) -> str:
        """Speed, prefill included, and tokens a step."""
        speed = self.n_tokens / (time.perf_counter() - self.started)
        return f"{self.n_tokens} tokens, {speed:.1f} tokens/s, tau {self.n_tokens / max(self.n_steps, 1):.2f}"


def read_settings(args: argparse.Namespace) -> Experiment:
    """The pipeline config with the options put into it; `--kv_method` takes the other selector's keys out."""
    settings = [f"{name}={value}" for name in OPTIONS if (value := getattr(args, name)) is not None]
    overrides = [parse_override(f"pipeline_params.{setting}") for setting in settings + args.overrides]
    params = read_json(args.pipeline_config).data.get("pipeline_params")
    if args.kv_method and isinstance(params, dict):
        params = {key: params[key] for key in params.keys() & FafoParams.model_fields} | {"kv_method": args.kv_method}
        overrides.insert(0, Override(f"--kv_method {args.kv_method}", ("pipeline_params",), params))
    return load_experiment(args.pipeline_config, EVAL_CONFIG, overrides)


def converse(chat: Chat, console: Console, interactive: bool) -> None:
    """Take turns until the input ends."""
    while True:
        try:
            text = input("> " if interactive else "").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            text = ""
        if text == "/exit":
            return
        if text == "/reset":
            chat.messages.clear()
        elif text:
            Answer(chat, console, interactive).run(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Load the model and chat; 2 is something the user can put right, in one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline_config", type=Path, default=PIPELINE_CONFIG, help="JSON file with pipeline_params")
    parser.add_argument(
        "--kv_method", help=f"what the window sees: {', '.join(SELECTORS)}, kvpress:Press or module:Class"
    )
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="KEY=VALUE (repeatable)")
    parser.add_argument("--model", dest="model_name", help="hub id or folder")
    for name in OPTIONS[1:]:
        parser.add_argument(f"--{name}", metavar="VALUE", help=f"the config's {name}")
    args = parser.parse_args(argv)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    console = Console(highlight=False)
    adopt_library_logs()
    try:
        experiment = read_settings(args)
        loaded = load_model(experiment.pipeline)
        if loaded.tokenizer.chat_template is None:
            raise UserError(f"{experiment.pipeline.model_name}: has no chat template; use an instruct model")
        if interactive:
            console.print(f"Ctrl-C interrupts, Ctrl-D or /exit ends, /reset starts anew; [{FREE_STYLE}]free tokens[/]")
        settings = experiment.decode_settings(loaded.eos_token_ids)
        settings = replace(settings, selector=settings.selector.bind(loaded.tokenizer))
        converse(Chat(loaded, settings), console, interactive)
    except (UserError, OSError) as error:
        sys.stderr.write("error: " + " ".join(redact(str(error)).split()) + "\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
