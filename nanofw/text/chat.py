"""Chat templates: messages to the text of a prompt, in a Jinja sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, cast

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from nanofw.errors import ModelError
from nanofw.text.tokenizer import read_tokenizer_config, token_text

Message: TypeAlias = Mapping[str, Any]
"""`role`, and mostly `content`: `{"role": "user", "content": "Hello"}`."""


class GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks what the model said; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_same")
        return CallBlock(call, [], [], body).set_lineno(line)

    def _same(self, caller: Any) -> str:
        return caller()


class ChatTemplate:
    """The chat templates of a model, by name.

    Args:
        templates: Jinja sources; `default` is used unless another is named, and `tool_use`
            when there are tools and no other name.
        variables: what templates may refer to: bos_token, eos_token and so on.

    Raises:
        ModelError: a template cannot be parsed.
    """

    def __init__(self, templates: Mapping[str, str], variables: Mapping[str, str]) -> None:
        environment = _environment()
        self._templates = {
            name: _compile(environment, name, source) for name, source in templates.items()
        }
        self._variables = dict(variables)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the templates; empty when the model has none."""
        return tuple(self._templates)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **arguments: Any,
    ) -> str:
        """The prompt's text, to be encoded without special tokens.

        Args:
            messages: the conversation, oldest first.
            tools: JSON descriptions of functions, passed to the template as they are.
            template: name of the template.
            add_generation_prompt: end with the header of the model's turn.
            continue_final_message: end within the last message, to be continued.
            arguments: further variables of the template, like `enable_thinking`.

        Raises:
            ValueError: wrong messages, or the template refuses them.
        """
        checked = check_messages(messages)
        if continue_final_message:
            add_generation_prompt = False
        variables = {
            **self._variables,
            "messages": checked,
            "tools": None if tools is None else list(tools),
            "add_generation_prompt": add_generation_prompt,
            **arguments,
        }
        chosen = self._choose(template, has_tools=bool(tools))
        try:
            text = chosen.render(variables)
        except (jinja2.TemplateError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"the chat template refuses the messages: {error}") from error
        return _cut_after_last_message(text, checked) if continue_final_message else text

    def _choose(self, name: str | None, *, has_tools: bool) -> jinja2.Template:
        if not self._templates:
            raise ValueError("this model has no chat template: give prompts instead of messages")
        if name is None:
            name = "tool_use" if has_tools and "tool_use" in self._templates else "default"
        if name not in self._templates:
            known = ", ".join(self._templates)
            raise ValueError(f"no chat template is named {name!r}; there are: {known}")
        return self._templates[name]


def load_chat_template(folder: str | Path) -> ChatTemplate:
    """The templates of a checkpoint folder; without any, `render` says so.

    Read in this order, later ones win: `tokenizer_config.json`, `chat_template.json`,
    `chat_template.jinja`, `additional_chat_templates/NAME.jinja`.

    Raises:
        ModelError: a file cannot be read or parsed.
    """
    folder = Path(folder)
    config = read_tokenizer_config(folder)
    templates = _named_templates(config.get("chat_template"))
    single = folder / "chat_template.json"
    if single.is_file():
        templates |= _named_templates(json.loads(single.read_text("utf-8"))["chat_template"])
    path = folder / "chat_template.jinja"
    if path.is_file():
        templates["default"] = path.read_text(encoding="utf-8")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    return ChatTemplate(templates, _variables(config))


def check_messages(messages: object) -> list[dict[str, Any]]:
    """The messages as a list of dictionaries.

    Raises:
        ValueError: no messages, or one that is not an object with a role.
    """
    if not isinstance(messages, (list, tuple)):
        raise ValueError(f"messages must be a list of objects, not {type(messages).__name__}")
    if not messages:
        raise ValueError("messages must not be empty")
    return [
        _check_message(index, message) for index, message in enumerate(cast("list[Any]", messages))
    ]


def _check_message(index: int, message: Any) -> dict[str, Any]:
    fields = cast("dict[str, Any]", message) if isinstance(message, dict) else {}
    if not isinstance(fields.get("role"), str):
        raise ValueError(
            f'message {index} must be an object with a role, {{"role": "user", '
            f'"content": "…"}}, not {message!r}'
        )
    return fields


def _named_templates(value: Any) -> dict[str, str]:
    match value:
        case None:
            return {}
        case str():
            return {"default": value}
        case list():
            entries = cast("list[dict[str, str]]", value)
            return {entry["name"]: entry["template"] for entry in entries}
        case _:
            raise ModelError("chat_template must be a string or a list of named templates")


def _variables(config: Mapping[str, Any]) -> dict[str, str]:
    """Every named token, absent ones as an empty string, as templates expect."""
    named = {
        key: token_text(value) or "" for key, value in config.items() if key.endswith("_token")
    }
    return {"bos_token": "", "eos_token": "", **named}


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    names: Any = environment
    names.filters["tojson"] = _to_json
    names.globals.update(raise_exception=_raise, strftime_now=_now)
    return environment


def _now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _compile(environment: ImmutableSandboxedEnvironment, name: str, source: str) -> jinja2.Template:
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ModelError(f"chat template {name!r}, line {error.lineno}: {error.message}") from error


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes, which Jinja's own filter would put in."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _cut_after_last_message(text: str, messages: Sequence[Message]) -> str:
    content = messages[-1].get("content")
    if isinstance(content, list) and content:
        content = cast("dict[str, Any]", content[-1]).get("text")
    if not isinstance(content, str) or not content.strip():
        raise ValueError("the last message must have text to be continued")
    start = text.rfind(content.strip())
    if start < 0:
        raise ValueError("the chat template does not show the last message as it is")
    return text[: start + len(content.strip())]
