"""From questions to token ids: templates of all kinds and none, prompts that are too long."""

from typing import Any

import pytest

from eval import EvalParams, Sample
from pipeline.common.encoding import Encoder
from pipeline.common.models import LoadedModel, load_model
from pipeline.common.schemas import BaselineParams
from pipeline.errors import UserError
from tests.runs import CHAT_TEMPLATE, MAX_LENGTH, save_tiny_model

STRICT = (
    "{% for message in messages %}{% if message.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "[{{ message.content }}]{% endfor %}"
)
QUESTION: tuple[dict[str, str], ...] = ({"role": "user", "content": "What is two and two?"},)
SAMPLE = Sample("s", QUESTION, "Two and two are", {})


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Any:
    def load(chat_template: str | None, **params: Any) -> LoadedModel:
        folder = save_tiny_model(tmp_path_factory.mktemp("model"), chat_template)
        return load_model(BaselineParams(method="baseline", model_name=str(folder), n_new_tokens=8, **params))

    return load


@pytest.fixture(scope="module")
def with_template(load: Any) -> LoadedModel:
    return load(CHAT_TEMPLATE, dtype="float32")


@pytest.fixture(scope="module")
def without_template(load: Any) -> LoadedModel:
    return load(None, dtype="float32")


def text_of(loaded: LoadedModel, sample: Sample = SAMPLE, *answers: str, n_new: int = 8, **params: Any) -> str:
    prompt = Encoder(loaded, EvalParams(dataset="any", **params), n_new).encode(sample, answers)
    return str(loaded.tokenizer.decode(prompt.token_ids))


def test_chat_and_plain(with_template: LoadedModel, without_template: LoadedModel) -> None:
    assert text_of(with_template) == "<user>What is two and two?<assistant>"
    assert text_of(without_template) == "Two and two are"
    plain = Sample("s", (), "Two and two are", {})
    assert text_of(with_template, plain) == "Two and two are"


def test_turns_go_on(with_template: LoadedModel) -> None:
    sample = Sample("s", QUESTION, "", {}, later_turns=("Sure?", "Really?"))
    assert text_of(with_template, sample, "4") == "<user>What is two and two?<assistant>4<user>Sure?<assistant>"
    assert text_of(with_template, sample, "4", "Yes").endswith("<assistant>Yes<user>Really?<assistant>")


def test_a_system_message_without_a_role_for_it(load: Any) -> None:
    sample = Sample("s", ({"role": "system", "content": "Be brief."}, *QUESTION), "", {})
    assert text_of(load(STRICT), sample) == "[Be brief.\n\nWhat is two and two?]"


def test_a_system_message_with_nothing_to_merge_into(load: Any) -> None:
    sample = Sample("s", ({"role": "system", "content": "Be brief."},), "", {})
    with pytest.raises(UserError, match=r"the chat template of .* fails: no system role"):
        text_of(load(STRICT), sample)


def test_what_the_template_gets_besides(load: Any) -> None:
    loaded = load("{{ mood }}:{{ messages[0].content }}", chat_template_kwargs={"mood": "calm"})
    assert text_of(loaded) == "calm:What is two and two?"


def test_a_conversation_template_of_fastchat(without_template: LoadedModel, with_template: LoadedModel) -> None:
    sample = Sample("s", QUESTION, "", {}, later_turns=("Sure?",))
    with pytest.raises(UserError, match=r"prompt s: .* has no chat template.*eval_params.conversation_template"):
        text_of(without_template, sample)
    text = text_of(without_template, sample, "4", conversation_template="vicuna_v1.1")
    assert text.endswith("USER: What is two and two? ASSISTANT: 4</s>USER: Sure? ASSISTANT:")
    assert text_of(with_template, sample, conversation_template="vicuna_v1.1").startswith("<user>")  # has its own


def test_an_answer_ends_where_the_user_would_speak(without_template: LoadedModel) -> None:
    ids = without_template.tokenizer(" Four.\nUSER: And then?")["input_ids"]
    params = EvalParams(dataset="any", conversation_template="vicuna_v1.1")
    assert Encoder(without_template, params, 8).answer(ids) == "Four."
    assert Encoder(without_template, EvalParams(dataset="any"), 8).answer(ids) == " Four.\nUSER: And then?"


@pytest.mark.parametrize("most", [None, 60])
def test_the_middle_is_cut(with_template: LoadedModel, most: int | None) -> None:
    content = "".join(f"{i:04} " for i in range(200))
    sample = Sample("s", ({"role": "user", "content": content},), "", {}, n_new_tokens=5)
    limit = most or MAX_LENGTH - 5
    params = EvalParams(dataset="any", long_prompts="cut_middle", max_prompt_tokens=most)
    prompt = Encoder(with_template, params, 30).encode(sample)
    text = str(with_template.tokenizer.decode(prompt.token_ids))
    assert len(prompt.token_ids) == limit
    assert prompt.n_cut_tokens == len("<user><assistant>") + len(content) - limit
    kept = limit - len("<user><assistant>")
    assert text == f"<user>{content[: kept // 2]}{content[kept // 2 - kept :]}<assistant>"


def test_long_prompts_are_refused(with_template: LoadedModel) -> None:
    sample = Sample("s", ({"role": "user", "content": "x" * 600},), "", {})
    with pytest.raises(UserError, match=r"prompt s: .*617 tokens.*takes 512"):
        text_of(with_template, sample)
    with pytest.raises(UserError, match=r"617 tokens, more than eval_params.max_prompt_tokens, 20;.*cut_middle"):
        text_of(with_template, sample, max_prompt_tokens=20)
    with pytest.raises(UserError, match="leaves nothing of it"):
        text_of(with_template, sample, max_prompt_tokens=18, long_prompts="cut_middle")


def test_room_for_an_answer_is_left_only_by_cutting(with_template: LoadedModel) -> None:
    sample = Sample("s", ({"role": "user", "content": "x" * 490},), "", {})
    assert len(text_of(with_template, sample, n_new=100)) == 507
    assert len(text_of(with_template, sample, n_new=100, long_prompts="cut_middle")) == 412


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no') }}",
        "{{ 1 / 0 }}",
        "{{ '{}'.format() }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{% for i in range(1000000000) %}{% endfor %}",
    ],
)
def test_a_failing_template_is_named(load: Any, template: str) -> None:
    with pytest.raises(UserError, match=r"prompt s: the chat template of .* fails: "):
        text_of(load(template))


def test_spaces_of_code_are_kept(load: Any) -> None:
    loaded = load(None)
    loaded.tokenizer.clean_up_tokenization_spaces = True  # as Llama-3's configs have it
    code = "return ' '.join(w)  # a , b"
    ids = loaded.tokenizer(code)["input_ids"]
    assert Encoder(loaded, EvalParams(dataset="any"), 8).answer(ids) == code
