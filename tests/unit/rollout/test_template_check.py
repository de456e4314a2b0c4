"""`rstar2 validate` refuses a demonstration that the model's chat template cannot write, with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rstar2_train.cli.main import main
from tests.support.chat_templates import QWEN35

USER = {"role": "user", "content": "q"}
CALL = {"name": "f", "arguments": {}}
PLAIN = {"messages": [USER, {"role": "assistant", "content": "a"}]}
REASONING = {"messages": [USER, {"role": "assistant", "content": "a", "reasoning_content": "r"}]}
CALLING = {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}]}
CALLED, BROKEN = (
    {"messages": [USER, {"role": "assistant", "content": f"<tool_call>{call}</tool_call>"}]}
    for call in ('{"name": "f", "arguments": {}}', '{"name": "f", "arguments": }')
)
ERROR = {"role": "tool", "content": "error: invalid tool call: not valid JSON"}
CORRECTED = {"messages": [*BROKEN["messages"], ERROR, PLAIN["messages"][1]]}
OPEN = {"messages": [USER, {"role": "assistant", "content": "<think> no end", "tool_calls": [CALL]}]}
CUTS = (
    "{% for m in messages %}{% set c = m.content %}{% if m.role == 'assistant' and '<think>' in c %}"
    "{% set c = c[c.index('</think>') + 8:] %}{% endif %}<|im_start|>{{ m.role }}\n{{ c }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template that raises ValueError for a text without `</think>`."""
CHANNEL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<|endoftext|>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template that writes a token of its own before the content, as those with channels do."""
THINKING = {"messages": [USER, {"role": "assistant", "content": "<think>r</think>a"}]}


def _validate(folder: Path, model: Path | str, rows: list[dict[str, Any]], template: str = "") -> int:
    (folder / "sft.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source: dict[str, Any] = {"source": str(model)}
    if template:
        (folder / "template.jinja").write_text(template)
        source["chatTemplate"] = "template.jinja"
    spec = {
        "model": source,
        "accelerator": {"vendor": "None"},
        "trainer": {"replicas": 1, "gpusPerReplica": 0},
        "stages": [{"name": "sft", "type": "SFT", "sft": {"data": "sft.jsonl"}}],
    }
    job = {"apiVersion": "rstar2.dev/v1alpha1", "kind": "AgenticRLJob", "metadata": {"name": "x"}, "spec": spec}
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return main(["validate", str(folder / "job.yaml")])


@pytest.mark.parametrize(
    ("rows", "template", "message"),
    [
        ([PLAIN, CALLING, PLAIN], "", ""),
        ([PLAIN, PLAIN, REASONING], "", "sft.jsonl:3: messages[1]: the chat template does not write reasoning_content"),
        ([THINKING, REASONING, CALLING], QWEN35, ""),
        ([THINKING, PLAIN], QWEN35, "sft.jsonl:2: messages[1]: the chat template opens <think>"),
        ([PLAIN, {"messages": []}], "", "sft.jsonl:2: messages must be a non-empty list"),
        ([PLAIN, CALLING, CALLED, CORRECTED, BROKEN], "", "sft.jsonl:5: messages[1]: the content has a call of the"),
        ([PLAIN], "{{ messages }}", "not a special token"),
        ([PLAIN, OPEN], CUTS, "sft.jsonl:2: messages[1]: the chat template cannot render"),
        ([PLAIN], CHANNEL, "writes '<|endoftext|>' between the start of a turn and its content, so a turn has parts"),
        ([PLAIN], QWEN35.replace("think>", "reflect>"), "messages[1]: the chat template opens <reflect>"),
    ],
)
def test_validate_reads_demonstrations_with_the_template(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: Any, template: str, message: str
) -> None:
    """Files of this machine are read: each form of a demonstration must be rendered by the model's template."""
    assert _validate(tmp_path, model_folder, rows, template) == bool(message)
    captured = capsys.readouterr()
    assert message in captured.err if message else "valid, 1 stage: sft" in captured.out
    assert _validate(tmp_path, "pvc://models/base", [PLAIN, REASONING]) == 0
