"""Chat templates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanofw.errors import ModelError
from nanofw.text.chat import ChatTemplate, load_chat_template
from tests.text.test_detokenize import real_tokenizers

SIMPLE = (
    "{{ bos_token }}{% for message in messages %}\n"
    "<|{{ message['role'] }}|>{{ message.content }}<end>\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
USER = [{"role": "user", "content": "Hi <b>"}]


def template(source: str, **variables: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, {"bos_token": "<s>", **variables})


def test_messages_become_a_prompt() -> None:
    assert template(SIMPLE).render(USER) == "<s><|user|>Hi <b><end>\n<|assistant|>"
    assert template(SIMPLE).render(USER, add_generation_prompt=False) == "<s><|user|>Hi <b><end>\n"


def test_the_last_message_can_be_continued() -> None:
    messages = [*USER, {"role": "assistant", "content": "Hello, my"}]
    text = template(SIMPLE).render(messages, continue_final_message=True)
    assert text == "<s><|user|>Hi <b><end>\n<|assistant|>Hello, my"


def test_tools_and_arguments_reach_the_template() -> None:
    tools = [{"type": "function", "function": {"name": "größe", "parameters": {}}}]
    chat = template("{{ tools | tojson }}{% if thinking %}think{% endif %}")
    assert json.loads(chat.render(USER, tools=tools)) == tools
    assert "größe" in chat.render(USER, tools=tools)
    assert chat.render(USER, thinking=True) == "nullthink"


def test_named_templates() -> None:
    chat = ChatTemplate({"default": "plain", "tool_use": "tools", "rag": "rag"}, {})
    assert chat.render(USER) == "plain"
    assert chat.render(USER, tools=[{}]) == "tools"
    assert chat.render(USER, template="rag") == "rag"
    with pytest.raises(ValueError, match=r"'rga'.*default, tool_use, rag"):
        chat.render(USER, template="rga")


def test_extensions_that_published_templates_use() -> None:
    source = (
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
        "{{ strftime_now('%Y') | length }}"
    )
    assert template(source).render(USER * 2) == "Hi <b>4"


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "must not be empty"),
        ("Hi", "must be a list"),
        ([{"content": "Hi"}], "message 0 must be an object with a role"),
        ([*USER, "Hi"], "message 1 must be"),
    ],
)
def test_wrong_messages_are_refused(messages: list[dict[str, str]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        template(SIMPLE).render(messages)


def test_the_template_may_refuse() -> None:
    with pytest.raises(ValueError, match="refuses the messages: only users"):
        template("{{ raise_exception('only users') }}").render(USER)


@pytest.mark.parametrize(
    "source",
    ["{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.append(1) }}"],
)
def test_a_template_cannot_leave_the_sandbox(source: str) -> None:
    with pytest.raises(ValueError, match="refuses the messages"):
        template(source).render(USER)


GROWING = "{% set ns = namespace(x='ab') %}{% for i in range(64) %}GROW{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ 10 ** (10 ** 9) }}",
        "{{ 'a'.ljust(10 ** 10) }}",
        "{{ 'a' | center(10 ** 10) }}",
        "{{ 'a' | center(width=10000000000) }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '%10000000000d' | format(1) }}",
        "{{ '{:10000000000}'.format(1) }}",
        "{{ messages | tojson(indent=10000000000) }}",
        "{{ (['a' * 1000000] * 1000000) | join('b') }}",
        "{{ ''.join(['a' * 1000000] * 1000000) }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
        "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
        "{% for a in range(99999) %}{{ 'a' * 10000 }}{% endfor %}",
        GROWING.replace("GROW", "{% set ns.x = ns.x + ns.x %}"),
        GROWING.replace("GROW", "{% set ns.x = ns.x ~ ns.x %}"),
        GROWING.replace("GROW", "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
        GROWING.replace("GROW", "{% set ns.x = [ns.x, ns.x] | join %}"),
    ],
)
def test_a_template_without_end_refuses_its_conversation(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nanofw.text.template_environment.MAX_SECONDS", 0.5)
    monkeypatch.setattr("nanofw.text.template_environment.MAX_CHARACTERS", 1 << 22)
    with pytest.raises(ValueError, match="more than|a width of millions"):
        template(source).render(USER)


def test_bounds_change_no_text() -> None:
    source = (
        "{% for k, v in messages[0].items() %}{{ loop.index ~ '/' ~ loop.length }}{{ loop.last }}"
        "{{ k.ljust(9) + v | default(1700000000) | string }}{% endfor %}"
        "{% for x in nothing %}{{ x }}{% else %}none{% endfor %}{{ [1, 2] | join('-') }}"
        "{% for a in [[1, [2]]] recursive %}{{ a if a is integer else loop(a) }}{% endfor %}"
    )
    text = "1/2Falserole     user2/2Truecontent  Hi <b>none1-212"
    assert template(source).render(USER) == text


def test_without_a_template_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no chat template: give prompts"):
        load_chat_template(tmp_path).render(USER)


def test_a_broken_template_names_its_line() -> None:
    with pytest.raises(ModelError, match="'default', line 2"):
        template("a\n{% if %}").render(USER)


def test_places_where_templates_are_kept(tmp_path: Path) -> None:
    config = {"chat_template": "config {{ eos_token }}", "eos_token": {"content": "</s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    assert load_chat_template(tmp_path).render(USER) == "config </s>"
    (tmp_path / "chat_template.jinja").write_text("file {{ bos_token }}", encoding="utf-8")
    assert load_chat_template(tmp_path).render(USER) == "file "
    (tmp_path / "additional_chat_templates").mkdir()
    path = tmp_path / "additional_chat_templates" / "rag.jinja"
    path.write_text("rag", encoding="utf-8")
    assert load_chat_template(tmp_path).names == ("default", "rag")
    config["chat_template"] = [{"name": "default", "template": "a"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "chat_template.jinja").unlink()
    assert load_chat_template(tmp_path).render(USER) == "a"


@pytest.mark.weights
def test_real_templates_equal_transformers() -> None:
    folders = real_tokenizers()
    if not folders:
        pytest.skip("NANOFW_TEST_TOKENIZERS names no folder with tokenizers")
    transformers = pytest.importorskip("transformers")
    weather = {"name": "weather", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": weather}]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Привет 😀"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Weather?"},
    ]
    num_compared = 0
    for folder in folders:
        chat = load_chat_template(folder)
        if not chat.names:
            continue
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        for with_tools in (None, tools):
            expected = theirs.apply_chat_template(
                messages, tools=with_tools, tokenize=False, add_generation_prompt=True
            )
            assert chat.render(messages, tools=with_tools) == expected
            num_compared += 1
    assert num_compared
