"""Conversations as text: FastChat's templates, where answers stop, chats without a system role."""

import sys
from importlib.util import find_spec

import pytest

from eval.conversation import Message, merge_system, plain_conversation, stop_strings
from pipeline.errors import UserError

needs_fastchat = pytest.mark.skipif(find_spec("fastchat") is None, reason="fschat is an optional package")

SYSTEM: Message = {"role": "system", "content": "Be brief."}
HI: Message = {"role": "user", "content": "Hi"}
HELLO: Message = {"role": "assistant", "content": "Hello."}
WHY: Message = {"role": "user", "content": "Why?"}

VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
ZERO_SHOT = VICUNA.replace("user", "human")


def template_names() -> list[str]:
    """Every template that has a text form."""
    if find_spec("fastchat") is None:
        return []
    from fastchat.conversation import conv_templates

    return [name for name, template in conv_templates.items() if template.sep_style is not None]


@needs_fastchat
@pytest.mark.parametrize(
    ("template", "one_turn", "more"),
    [
        ("vicuna_v1.1", f"{VICUNA} USER: Hi ASSISTANT:", " Hello.</s>USER: Why? ASSISTANT:"),
        ("llama-2", "[INST] Hi [/INST]", " Hello. </s><s>[INST] Why? [/INST]"),
        (
            "zero_shot",
            f"{ZERO_SHOT}\n### Human: Hi\n### Assistant:",
            " Hello.\n### Human: Why?\n### Assistant:",
        ),
        (
            "qwen-7b-chat",  # ChatML
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
            "Hello.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "zephyr",
            "<|system|>\n</s>\n<|user|>\nHi</s>\n<|assistant|>\n",
            "Hello.</s>\n<|user|>\nWhy?</s>\n<|assistant|>\n",
        ),
    ],
)
def test_templates(template: str, one_turn: str, more: str) -> None:
    assert plain_conversation([HI], template) == one_turn
    assert plain_conversation([HI, HELLO, WHY], template) == one_turn + more
    assert plain_conversation([HI], template) == one_turn  # nothing stays behind


@needs_fastchat
def test_template_with_an_example() -> None:
    text = plain_conversation([HI], "one_shot")
    assert text.startswith(f"{ZERO_SHOT}\n### Human: Got any creative ideas")
    assert text.endswith("Have a great celebration!\n### Human: Hi\n### Assistant:")


@needs_fastchat
@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("vicuna_v1.1", "Be brief. USER: Hi ASSISTANT:"),
        ("llama-2", "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST]"),
        ("zephyr", "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\n"),
        ("dolly_v2", "Be brief.\n\n### Instruction:\nHi\n\n### Response:\n"),  # the break belongs to its own message
        ("oasst_llama", "<|prompter|>Be brief.\n\nHi</s><|assistant|>"),  # has no place for it
    ],
)
def test_system_message(template: str, text: str) -> None:
    assert plain_conversation([SYSTEM, HI], template) == text


@needs_fastchat
def test_fixed_system_text_swallows_nothing() -> None:
    text = plain_conversation([SYSTEM, HI], "deepseek-coder")
    assert text.endswith("### Instruction:\nBe brief.\n\nHi\n### Response:\n")


@needs_fastchat
@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "none"),
        ([SYSTEM], "none"),
        ([HI, HELLO], "user, assistant"),
        ([HELLO, HI], "assistant, user"),
        ([HI, WHY, HI], "user, user, user"),
        ([HI, HELLO, SYSTEM], "user, assistant, system"),
    ],
)
def test_turns_alternate(messages: list[Message], said: str) -> None:
    with pytest.raises(UserError, match=f"'vicuna_v1.1': the roles are {said};"):
        plain_conversation(messages, "vicuna_v1.1")


@needs_fastchat
@pytest.mark.parametrize(
    ("template", "strings"),
    [
        ("vicuna_v1.1", ["</s>", "\nUSER:", " USER:"]),
        ("llama-2", ["</s><s>", "[INST]"]),
        ("zero_shot", ["###", "\nHuman:"]),
        ("openbuddy", ["\nUser:"]),
        ("qwen-7b-chat", ["<|endoftext|>", "<|im_end|>", "<|im_start|>user"]),
        ("aquila", ["</s>", "[UNK]", "\nHuman:"]),  # FastChat has a list of them
        ("metamath", ["### Instruction:"]),
        ("yuan2", ["<eod>", "<n>"]),  # does not write its roles
        ("raw", []),
    ],
)
def test_stop_strings(template: str, strings: list[str]) -> None:
    assert stop_strings(template) == strings


@needs_fastchat
@pytest.mark.parametrize("template", template_names())
def test_answer_is_cut_where_the_next_turn_begins(template: str) -> None:
    whole = plain_conversation([HI, HELLO, WHY], template)
    run_on = whole[whole.rindex("Hello.") :]
    strings = stop_strings(template)
    assert all(strings)
    if template not in ("raw", "codegeex"):  # which have nothing that tells turns apart
        begin = min(run_on.index(string) for string in strings if string in run_on)
        assert run_on[:begin].rstrip() == "Hello."


@needs_fastchat
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vicuna_v1", 'vicuna_v1.1"'),
        ("chatgpt", "not a template"),  # of an API: no text form
        ("?", "known: .*vicuna"),
    ],
)
def test_unknown_template(name: str, said: str) -> None:
    for use in (stop_strings, lambda name: plain_conversation([HI], name)):
        with pytest.raises(UserError, match=said):
            use(name)


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastchat.conversation", None)
    with pytest.raises(UserError, match="pip install fschat"):
        plain_conversation([HI], "vicuna_v1.1")


def test_merge_system() -> None:
    assert merge_system([SYSTEM, HI, HELLO, WHY]) == [{"role": "user", "content": "Be brief.\n\nHi"}, HELLO, WHY]
    assert merge_system([HI, HELLO, WHY]) == [HI, HELLO, WHY]
    assert merge_system([SYSTEM, HELLO]) == [SYSTEM, HELLO]  # left for the template to refuse
    assert HI == {"role": "user", "content": "Hi"}
