"""Conversations as text: FastChat's templates for models without a chat template, and chats without a system role."""

from collections.abc import Sequence
from typing import Any

from pipeline.errors import UserError, suggest

Message = dict[str, str]  # "role" and "content"

_SYSTEM_SLOT = "{system_message}"


def plain_conversation(messages: Sequence[Message], template_name: str) -> str:
    """Format a chat with FastChat's template of that name, up to where the assistant is to speak.

    A system message takes the place of the template's own; if the template has none, it goes into the first user
    message. As in FastChat, nothing but the assistant's role stands for an empty answer.

    Raises:
        UserError: fschat is missing or has no such template, or user and assistant do not take turns.
    """
    conversation = _template(template_name)
    if not _has_system_slot(conversation):
        messages = merge_system(messages)
    elif messages and messages[0]["role"] == "system":
        default = conversation.system_message
        conversation.set_system_message(messages[0]["content"] + default[len(default.rstrip()) :])  # ends as that does
        messages = messages[1:]
    roles = [message["role"] for message in messages]
    if len(roles) % 2 == 0 or roles != [("user", "assistant")[number % 2] for number in range(len(roles))]:
        raise UserError(
            f"conversation_template {template_name!r}: the roles are {', '.join(roles) or 'none'}; user and "
            "assistant should take turns, and a user begin and end"
        )
    for number, message in enumerate(messages):
        conversation.append_message(conversation.roles[number % 2], message["content"])
    conversation.append_message(conversation.roles[1], None)
    return str(conversation.get_prompt())


def stop_strings(template_name: str) -> list[str]:
    """What shows in an answer that the model has gone on to the next turn: the answer is what stands before.

    These are the template's own stop strings, what it ends answers with, and how it begins the user's turn. Special
    tokens are among them, for models that spell them out. Templates without roles may have none.

    Raises:
        UserError: fschat is missing or has no such template.
    """
    conversation = _template(template_name)
    user, assistant, *_ = conversation.roles
    for role, text in ((user, "Q"), (assistant, "\0A"), (user, "\0Q")):
        conversation.append_message(role, text)
    between = conversation.get_prompt().partition("\0A")[2].partition("\0Q")[0]
    begin = between.rfind(user) if user and user in between else len(between)
    own = conversation.stop_str or []
    found = [own] if isinstance(own, str) else [*own]
    found += [ending for ending in [between[:begin].strip()] if ending]
    found += _at_start(between[begin:].rstrip(), conversation.sep)
    return list(dict.fromkeys(found))


def merge_system(messages: Sequence[Message]) -> list[Message]:
    """Put the system message at the beginning of the user message after it, for templates without a system role."""
    if [message["role"] for message in messages[:2]] != ["system", "user"]:
        return list(messages)
    system, user, *later = messages
    return [{**user, "content": f"{system['content']}\n\n{user['content']}"}, *later]


def _template(name: str) -> Any:
    """A copy of FastChat's template, to be filled."""
    try:
        from fastchat.conversation import conv_templates, get_conv_template  # an optional package
    except ImportError:
        raise UserError(
            f"conversation_template {name!r} takes FastChat's templates; run pip install fschat==0.2.36"
        ) from None
    # those without a style are of models behind an API, which get messages and no text
    known = [key for key, template in conv_templates.items() if template.sep_style is not None]
    if name not in known:
        raise UserError(f"conversation_template {name!r} is not a template of FastChat's{suggest(name, known)}")
    return get_conv_template(name)


def _has_system_slot(conversation: Any) -> bool:
    """Whether a system message has a place of its own: a frame, or a default message that stands in for one."""
    template = conversation.system_template
    return _SYSTEM_SLOT in template and (template != _SYSTEM_SLOT or bool(conversation.system_message))


def _at_start(marker: str, separator: str) -> list[str]:
    """Where a role's marker counts: anywhere, but if it begins as a word does, only after a break.

    "Human:" may well stand within an answer's line; "### Human:" won't.
    """
    if not marker[:1].isalnum():
        return [marker] if marker else []
    return ["\n" + marker, *([separator + marker] if separator == " " else [])]  # " ": turns share a line
