"""Random conversations, rendered by nanofw and by transformers.

`python -m tests.fuzz.chats FIRST COUNT`: the seeds from `FIRST` on.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from tokenizers import Tokenizer, models

from nanofw.text.chat import ChatTemplate

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] + '\n' }}"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRICT = (
    "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "[{{ m.role }}]{{ ' ' + m.content | trim + ' ' }}{% if m.role == 'assistant' %}{{ eos_token }}"
    "{% endif %}{% endfor %}"
)
REASONING = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content is defined %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{% if m.content %}{{ m.content }}"
    "{% endif %}</{{ m.role }}>\n{% endfor %}{% if add_generation_prompt %}<assistant>"
    "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
    "{% endif %}"
)
HARMONY = (
    "{% for m in messages %}<{{ m.role }}>{% if 'thinking' in m %}({{ m.thinking }}){% endif %}"
    "{{ m.content if m.content is string else '' }}\nassistant{% endfor %}"
)
PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<image>{% elif 'text' in part %}"
    "{{ part.text }}{% endif %}{% endfor %}{% endif %}</s>{% endfor %}"
)
STRIPS = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}"
    "{{ m.role }}: {{ (m.content or '').strip() if loop.index0 > ns.last else m.content }}\n"
    "{% endfor %}{{ pad_token is defined }}{{ style }}"
)
TEMPLATES = (CHATML, STRICT, REASONING, HARMONY, PARTS, STRIPS)

CONTENTS: tuple[Any, ...] = (
    "Hello", "It is ", "\n\n", "```python\n", "", " ", "assistant", "\nassistant", "<|im_end|>",
    "a\tb  ", "Žluťoučký 😀", "{{ bos_token }}", "user", None,
)  # fmt: skip
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}


def weather(city: str, days: int = 1) -> str:
    """Tell the weather.

    Args:
        city: where it is.
        days: how many
            to look ahead.
    """
    return f"{city} {days}"


def find(words: list[str], limit: int) -> str:
    """Find pages.

    Args:
        words: what to look for
        limit: how many pages
    """
    return f"{words} {limit}"


TOOLS: tuple[Any, ...] = (None, None, [], [TOOL], [weather], [TOOL, find])


def random_message(rng: random.Random, template: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": rng.choice(("system", "user", "assistant", "tool"))}
    if rng.random() < 0.9:
        message["content"] = rng.choice(CONTENTS)
    if template == PARTS and rng.random() < 0.5:
        kinds = ({"type": "image"}, {"type": "text", "text": rng.choice(CONTENTS) or ""})
        message["content"] = [dict(rng.choice(kinds)) for _ in range(rng.randrange(4))]
    if rng.random() < 0.3:
        message["tool_calls"] = rng.choice((None, [], [CALL]))
    if rng.random() < 0.3:
        key = rng.choice(("reasoning", "reasoning_content", "thinking"))
        message[key] = rng.choice(CONTENTS)
    return message


def random_case(seed: int) -> tuple[str, dict[str, str], dict[str, Any]]:
    """A template, its tokens, and the arguments of rendering it."""
    rng = random.Random(seed)
    template = rng.choice(TEMPLATES)
    tokens = {name: f"<{name}>" for name in ("bos_token", "eos_token", "pad_token")}
    tokens = {name: text for name, text in tokens.items() if rng.random() < 0.7}
    messages = [random_message(rng, template) for _ in range(rng.randrange(1, 5))]
    arguments: dict[str, Any] = {"messages": messages, "tools": rng.choice(TOOLS)}
    match rng.randrange(5):
        case 0 | 1:
            arguments["continue_final_message"] = True
        case 2:
            arguments["continue_final_message"] = rng.choice(("reasoning", "reasoning_content"))
        case _:
            arguments["add_generation_prompt"] = rng.random() < 0.7
    if rng.random() < 0.3:
        arguments["enable_thinking"] = rng.choice((True, False, None))
    if rng.random() < 0.3:
        arguments["style"] = rng.choice(("plain", 3, None))
    return template, tokens, arguments


def rendered_here(case: tuple[str, dict[str, str], dict[str, Any]]) -> str | None:
    """The text; None: it is refused."""
    template, tokens, arguments = case
    try:
        return ChatTemplate({"default": template}, tokens).render(**arguments)
    except ValueError:
        return None


def rendered_there(case: tuple[str, dict[str, str], dict[str, Any]]) -> str | None:
    """What transformers makes of it; None: it raises."""
    import transformers

    template, tokens, arguments = case
    backend = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    for name, text in tokens.items():
        setattr(theirs, name, text)
    messages, others = arguments["messages"], dict(arguments)
    del others["messages"]
    try:
        text = theirs.apply_chat_template(
            messages, chat_template=template, tokenize=False, **others
        )
    except Exception:
        return None
    assert isinstance(text, str)
    return text


def main() -> None:
    first, count = map(int, sys.argv[1:3])
    num_different = 0
    for seed in range(first, first + count):
        case = random_case(seed)
        ours, theirs = rendered_here(case), rendered_there(case)
        if ours != theirs:
            num_different += 1
            print(f"seed {seed}: {case}\n  here  {ours!r}\n  there {theirs!r}")
    print(f"{count} chats, {num_different} rendered differently")
    sys.exit(num_different > 0)


if __name__ == "__main__":
    main()
