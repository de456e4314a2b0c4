"""Checks before a job starts that the chat template of its model renders its prompts and demonstrations.

One row is rendered per form: the roles and fields of the messages, and the marks in their texts. The SFT stage encodes
every row.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.roles import ModelSource
from rstar2_train.api.sources import sources
from rstar2_train.capacity.config_file import TOKENIZER
from rstar2_train.capacity.reference_model import is_served, reference_models
from rstar2_train.data.demonstrations import empty_fields, read_demonstrations
from rstar2_train.data.readers import DataError
from rstar2_train.rollout.chat_format import ChatFormat, ChatFormatError
from rstar2_train.rollout.engine_tokenizer import FILE_CLASS, find_difference
from rstar2_train.rollout.tokenizer_files import PROBE, load_tokenizer
from rstar2_train.tools.parser import INVALID_CALL, first_fault
from rstar2_train.tools.toolset import offline_toolset

MOST_FORMS = 256
"""Forms of demonstrations that are rendered per file: about a second."""
_TAGS = ("<think>", "</think>", "<tool_call>", "[TOOL_CALLS]", "```tool_code", "<|python_tag|>", '{"name"')
_PROBLEM = f"{PROBE}\n\n```python\nif a < b and b > c & d:\n    e = 'f'\n```\n{'word ' * 2000}"
"""A problem with the signs that filters of a template change, and with more characters than they keep."""


def find_template_errors(job: AgenticRLJob) -> dict[str, str]:
    """Return the errors of tokenizer and chat template of a job: field -> error; of a demonstration, with its line.

    The sources are paths. A model that is not on this machine is not checked: a stage checks it when it starts.
    Sources that do not exist, and invalid rows, have errors of their own (`data.sources.find_invalid_files`).
    """
    model = next((source for source in sources(job) if source.holds == "model"), None)
    files = [source for source in sources(job) if source.holds == "conversations" and Path(source.value).is_file()]
    if model is None or not (Path(model.value) / "config.json").is_file():
        return {}
    try:
        chat_format = ChatFormat.load(model.value, job.spec.model, tools=offline_toolset(job.spec))
        chat_format.prompt_ids(_PROBLEM)
        if any(stage.needs_engines for stage in job.spec.stages):
            find_difference(Path(model.value), chat_format.tokenizer)  # raises for a folder with which none starts
    except ChatFormatError as error:
        return {model.field: str(error)}
    errors = _teacher_errors(job)
    for source in files:
        try:
            check_demonstrations(Path(source.value), chat_format)
        except ChatFormatError as error:
            errors[source.field] = str(error)
        except DataError:
            continue
    return errors


def _teacher_errors(job: AgenticRLJob) -> dict[str, str]:
    """Return why engines of spec.teacher read texts otherwise than the model: field -> error."""
    errors = {}
    for field, folder in reference_models(job).items():
        if not is_served(job, field) or not (folder / TOKENIZER).is_file():
            continue
        try:
            if difference := find_difference(folder, load_tokenizer(folder)):
                errors[field] = (
                    f"{folder}: engines cannot serve it as the teacher: {difference}: "
                    f"set tokenizer_class in its tokenizer_config.json to {FILE_CLASS}, or remove spec.teacher"
                )
        except ChatFormatError as error:
            errors[field] = str(error)
    return errors


def find_template_notes(folder: Path, source: ModelSource) -> list[str]:
    """Return how other programs write or read a conversation otherwise than a job of a model; a faulty one has none."""
    try:
        notes, chat_format = [], ChatFormat.load(folder, source)
        if chat_format.template.is_rewriting():
            notes.append(
                "the chat template changes earlier messages when later ones follow: a rollout, as a demonstration, "
                "keeps the text that its first turns had; other programs render the whole conversation again"
            )
        if difference := find_difference(folder, chat_format.tokenizer):
            notes.append(
                f"{difference}: the job has the tokens of {TOKENIZER}, and engines get token ids; programs that give a "
                "text to AutoTokenizer, such as the chat endpoint of vLLM, have others: read the folder with "
                f"{FILE_CLASS}"
            )
    except ChatFormatError:
        return []
    return notes


def check_demonstrations(path: Path, chat_format: ChatFormat) -> None:
    """Render the first demonstration of each form. Raises ChatFormatError, which names file and line, and DataError."""
    seen = set[tuple[Any, ...]]()
    for row in read_demonstrations(path):
        form = (bool(row.tools), *(_form(message, chat_format) for message in row.messages))
        if form in seen:
            continue
        seen.add(form)
        if len(seen) > MOST_FORMS:
            return
        try:
            chat_format.encode_demonstration(row.messages, row.tools)
        except ChatFormatError as error:
            raise ChatFormatError(f"{row.where}: {error}") from error


def _form(message: Mapping[str, Any], chat_format: ChatFormat) -> tuple[Any, ...]:
    """Return what decides whether a template renders a message, besides its words."""
    text, calls = str(message["content"]), message.get("tool_calls", ())
    return (
        message["role"],
        bool(text.strip()),
        message.get("weight"),
        bool(message.get("reasoning_content")),
        *empty_fields(message),
        len(calls) > 1,
        *(call["function"]["name"].isidentifier() for call in calls[:1]),
        *(min(2, text.count(tag)) for tag in _TAGS),
        message["role"] == "assistant" and first_fault(text, chat_format.tools.parser) != "",
        text.startswith(INVALID_CALL),
        message["role"] != "tool" and chat_format.escape_markers(text) != text,
    )
