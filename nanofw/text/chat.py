"""Chat templates: messages to the text of a prompt, in a Jinja sandbox.

jinja2 is imported by the first chat: a run that only completes texts starts without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from nanofw.checkpoints.files import read_json, read_text
from nanofw.checkpoints.tokenizer_files import (
    CONFIG,
    read_tokenizer_config,
    special_token_texts,
)
from nanofw.errors import ModelError, shown
from nanofw.narrowing import is_list, is_object
from nanofw.text.continuation import cut_at_mark, with_mark
from nanofw.text.messages import as_texts, check_messages, plain, with_reasoning_names
from nanofw.text.tools import check_tools

if TYPE_CHECKING:
    import jinja2

_OWN_VARIABLES = frozenset(
    {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "pad_token"}
)

_PROBE = "NANOFW-PROBE"
_NOWHERE: Mapping[str, Path] = {}
_NO_PROBLEMS: Mapping[str, str] = {}

Message: TypeAlias = Mapping[str, object]
"""`role`, and mostly `content`: `{"role": "user", "content": "Hello"}`."""


class ChatTemplate:
    """The chat templates of a model, by name. One that is broken ends nothing until it is used.

    Args:
        templates: Jinja sources; `default` is used unless another is named, and `tool_use`
            when there are tools and no other name.
        variables: what templates may refer to: bos_token, eos_token and so on.
        places: by name of a template, the file that it is from.
        problems: by name, why a template cannot be read.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        variables: Mapping[str, str],
        *,
        places: Mapping[str, Path] = _NOWHERE,
        problems: Mapping[str, str] = _NO_PROBLEMS,
    ) -> None:
        self._templates: dict[str, jinja2.Template] = {}  # those that were used
        self._sources, self._places = {**dict.fromkeys(problems, ""), **templates}, places
        self._problems = dict(problems)
        self._reads_parts: dict[str, bool] = {}
        self._variables = dict(variables)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the templates; empty when the model has none."""
        return tuple(self._sources)

    @cached_property
    def variables(self) -> frozenset[str]:
        """Variables that the templates read and that a chat may set."""
        import jinja2
        from jinja2.meta import find_undeclared_variables

        from nanofw.text.template_environment import make_environment

        read: set[str] = set()
        environment = make_environment()
        for source in self._sources.values():
            with suppress(jinja2.TemplateError, RecursionError):  # who uses it is told
                read |= find_undeclared_variables(environment.parse(source))
        return frozenset(read - _OWN_VARIABLES - set(environment.globals) - set(self._variables))

    def contains(self, text: str) -> bool:
        """Whether the source of some template contains a text."""
        return any(text in source for source in self._sources.values())

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, object] | Callable[..., object]] | None = None,
        template: str | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | str = False,
        **arguments: object,
    ) -> str:
        """The prompt's text, to be encoded without special tokens.

        Args:
            messages: the conversation, oldest first. Contents are texts or lists of parts, whose
                texts are joined by line breaks for a template that cannot read parts.
            tools: JSON descriptions of functions, or the functions themselves.
            template: name of the template.
            add_generation_prompt: end with the header of the model's turn; None: unless the last
                message is continued.
            continue_final_message: end within the last message, to be continued; a text names the
                key of the message that is continued, like `reasoning_content`.
            arguments: further variables of the template, like `enable_thinking`.

        Raises:
            ValueError: wrong messages, or the template refuses them.
            ModelError: the template is broken.
        """
        if continue_final_message and add_generation_prompt:
            raise ValueError(
                "continue_final_message and add_generation_prompt exclude each other: the prompt "
                "ends either within the last message or with the header of a new one"
            )
        checked, described = check_messages(messages), check_tools(tools)
        name = self._choose(template, has_tools=described is not None)
        if any(isinstance(m.get("content"), (list, tuple)) for m in checked):
            checked = checked if self._can_read_parts(name) else as_texts(checked)
        checked, last = with_reasoning_names(checked), ""
        if continue_final_message:
            key = "content" if continue_final_message is True else continue_final_message
            checked, last = with_mark(checked, key, self._sources[name])
        variables = {
            **self._variables,
            "messages": checked,
            "tools": described,
            "documents": None,
            "add_generation_prompt": (
                not continue_final_message
                if add_generation_prompt is None
                else add_generation_prompt
            ),
            **{key: plain(item) for key, item in arguments.items()},
        }
        text = _rendered(self._template(name), variables)
        return cut_at_mark(text, last) if continue_final_message else text

    def _template(self, name: str) -> jinja2.Template:
        """The compiled template. Raises ModelError, once and again: it is broken."""
        import jinja2

        from nanofw.text.template_environment import compile_template

        if name not in self._templates and name not in self._problems:
            try:
                self._templates[name] = compile_template(self._sources[name])
            except (jinja2.TemplateError, SyntaxError, RecursionError, ValueError) as error:
                self._problems[name] = f"{self._label(name)}{_syntax_problem(error)}"
        if name in self._problems:
            raise ModelError(self._problems[name])
        return self._templates[name]

    def _label(self, name: str) -> str:
        place = self._places.get(name)
        return f"chat template {name!r}" if place is None else f"{place}: chat template {name!r}"

    def _can_read_parts(self, name: str) -> bool:
        """Whether a template shows the texts of a content that is a list of parts."""
        if name not in self._reads_parts:
            parts = [{"type": "text", "text": _PROBE}]
            variables = {
                **self._variables,
                "messages": [{"role": "user", "content": parts}],
                "tools": None,
                "documents": None,
                "add_generation_prompt": False,
            }
            try:
                text = _rendered(self._template(name), variables)
            except ValueError:
                text = ""
            self._reads_parts[name] = _PROBE in text and "'type'" not in text
        return self._reads_parts[name]

    def _choose(self, name: str | None, *, has_tools: bool) -> str:
        if not self._sources:
            raise ValueError("this model has no chat template: give prompts instead of messages")
        if name is None:
            name = "tool_use" if has_tools and "tool_use" in self._sources else "default"
        if name not in self._sources:
            known = ", ".join(self._sources)
            raise ValueError(f"no chat template is named {shown(name)}; there are: {known}")
        return name


def _rendered(template: jinja2.Template, variables: Mapping[str, object]) -> str:
    from nanofw.text.template_environment import render_template

    try:
        return render_template(template, variables)
    except Exception as error:  # a template is a program: it may raise anything
        raise ValueError(f"the chat template refuses the messages: {error}") from error


def load_chat_template(folder: str | Path) -> ChatTemplate:
    """The templates of a checkpoint folder; without any, `render` says so.

    That of `chat_template.jinja`; without it that of `chat_template.json`, else those of
    `tokenizer_config.json`. Those of `additional_chat_templates/NAME.jinja` come on top.

    A template that cannot be read is a problem of the chats that use it.

    Raises:
        ModelError: `tokenizer_config.json` cannot be read.
    """
    folder = Path(folder)
    config = read_tokenizer_config(folder)
    path, single = folder / "chat_template.jinja", folder / "chat_template.json"
    files = {item.stem: item for item in (folder / "additional_chat_templates").glob("*.jinja")}
    templates, places, problems = dict[str, str](), dict[str, Path](), dict[str, str]()
    if path.exists():
        files["default"] = path
    else:
        place = single if single.exists() else folder / CONFIG
        try:
            given = read_json(single) if single.exists() else config
            if single.exists() and given.get("chat_template") is None:
                raise ModelError("it has no key chat_template")
            templates = _named_templates(given.get("chat_template"))
        except ModelError as error:
            problems["default"] = f"{place}: {str(error).removeprefix(f'{place} ')}"
        places = dict.fromkeys(templates, place)
    for name, place in sorted(files.items(), key=lambda item: (item[0] != "default", item)):
        places[name] = place
        try:
            templates[name] = read_text(place)
        except (OSError, ValueError) as error:
            templates.pop(name, None)
            problems[name] = f"{place} cannot be read: {error}"
    return ChatTemplate(templates, special_token_texts(config), places=places, problems=problems)


def _named_templates(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if is_list(value):
        return dict(map(_named_template, value))
    raise ModelError("chat_template must be a string or a list of named templates")


def _named_template(entry: object) -> tuple[str, str]:
    if not is_object(entry) or "name" not in entry or "template" not in entry:
        raise ModelError("chat_template is a list, but not of objects with a name and a template")
    return str(entry["name"]), str(entry["template"])


def _syntax_problem(error: Exception) -> str:
    """What is wrong with a template, after its name."""
    import jinja2

    match error:
        case jinja2.TemplateSyntaxError():
            return f", line {error.lineno}: {error.message}"
        case RecursionError():
            return " is nested too deeply"
        case _:  # of the Python code that jinja2 makes of it: its lines are others
            return f" cannot be compiled: {error.msg if isinstance(error, SyntaxError) else error}"
