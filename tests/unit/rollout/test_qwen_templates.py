"""The chat templates of Qwen3 and Qwen2.5: the tokens of a rollout equal the rendering of the template.

The templates are written here in short form; they render the conversations of these tests as the published ones do.
"""

import random

import pytest

from rstar2_train.rollout.chat_format import ChatFormat
from tests.support.engine import QUESTION, SYSTEM

TOOL_ROLE = """\
{%- macro tool_turn(at) %}
{%- if at == 0 or messages[at - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + messages[at].content + '\\n</tool_response>' }}
{%- if at + 1 == messages | length or messages[at + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- endmacro %}"""
QWEN25 = (
    TOOL_ROLE
    + """\
{%- if messages[0].role != 'system' %}
{{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}{{ tool_turn(loop.index0) }}
{%- else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
)
"""Adds a system message of its own when there is none."""
QWEN3 = (
    TOOL_ROLE
    + """\
{%- set seen = namespace(query=messages | length - 1, looking=true) %}
{%- for m in messages | reverse %}
{%- set wrapped = m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>') %}
{%- if seen.looking and m.role == 'user' and not wrapped %}
{%- set seen.query = messages | length - 1 - loop.index0 %}{% set seen.looking = false %}{% endif %}
{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'tool' %}{{ tool_turn(loop.index0) }}
{%- elif m.role != 'assistant' %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- else %}
{%- set reasoning, content = '', m.content %}
{%- if '</think>' in content %}
{%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > seen.query and (loop.last or reasoning) %}
{{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
{%- else %}{{ content }}{% endif %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""
)
"""Writes the reasoning only of turns after the last question, and an empty one into the last turn."""
TEMPLATES = {"Qwen2.5": QWEN25, "Qwen3": QWEN3}
FRAGMENTS = [
    "2",
    "x",
    "\n",
    " ",
    "é",
    "<reason>",
    "</reason>",
    "<tool_call>\n{}\n</tool_call>",
    "<answer>1</answer>",
    "{{",
]


def random_text(source: random.Random) -> str:
    return "a" + "".join(source.choice(FRAGMENTS) for _ in range(source.randrange(8)))


def random_conversation(source: random.Random, *, thinking: bool) -> list[dict[str, str]]:
    """Return a question, and turns with tool responses between them."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    for turn in range(source.randrange(1, 5)):
        if turn:
            messages += ({"role": "tool", "content": random_text(source)} for _ in range(source.randrange(1, 4)))
        content = (
            f"<think>\n{random_text(source).strip()}\n</think>\n\n{random_text(source)}"
            if thinking
            else random_text(source)
        )
        messages.append({"role": "assistant", "content": content})
    return messages


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("name", TEMPLATES)
def test_rollout_equals_template_rendering(chat_format: ChatFormat, name: str, thinking: bool) -> None:
    """Turn by turn and rendered whole, a conversation is the same text.

    Exception: Qwen3 writes an empty reasoning into a last turn that has none, which the model did not sample.
    """
    template = TEMPLATES[name]
    own = ChatFormat(chat_format.tokenizer, system_prompt=SYSTEM, prompt_prefix="", chat_template=template)
    source = random.Random(f"{name} {thinking}")
    for _ in range(100):
        messages = random_conversation(source, thinking=thinking)
        for message in messages:
            if message["role"] == "tool":
                message["content"] = own.escape_markers(message["content"])
        encoded = own.encode_conversation(messages)
        text = own.decode(encoded.token_ids)
        whole = own.template.render(messages).removesuffix("<|im_start|>assistant\n")
        if name == "Qwen3" and not thinking:
            head, opening, last = whole.rpartition("<|im_start|>assistant\n")
            whole = head + opening + last.removeprefix("<think>\n\n</think>\n\n")
        assert text + "\n" == whole
        written = own.decode([token for token, bit in zip(encoded.token_ids, encoded.mask, strict=True) if bit])
        turns = [message["content"] for message in messages if message["role"] == "assistant"]
        assert written == "".join(turn + "<|im_end|>" for turn in turns)


@pytest.mark.parametrize("name", TEMPLATES)
def test_tool_turn_after_a_question_keeps_its_tokens(chat_format: ChatFormat, name: str) -> None:
    """A second question changes nothing of the tokens before it, although Qwen3 would drop their reasoning."""
    own = ChatFormat(chat_format.tokenizer, system_prompt=SYSTEM, prompt_prefix="", chat_template=TEMPLATES[name])
    messages = random_conversation(random.Random(3), thinking=True)
    before = own.encode_conversation(messages).token_ids
    after = own.conversation_prompt_ids([*messages, {"role": "user", "content": "And now?"}])
    assert after[: len(before)] == before
    assert own.decode(after[len(before) :]) == "\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n"


def test_qwen25_prompt_without_system_message_has_its_own(chat_format: ChatFormat) -> None:
    """Qwen2.5 adds its system message to a prompt as it is; Qwen3 adds none."""
    prompts = [
        ChatFormat(chat_format.tokenizer, system_prompt="", prompt_prefix="", chat_template=template)
        for template in (QWEN25, QWEN3)
    ]
    qwen25, qwen3 = (own.decode(own.prompt_ids("x")) for own in prompts)
    assert qwen3 == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    message = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    assert qwen25 == f"<|im_start|>system\n{message}<|im_end|>\n{qwen3}"
