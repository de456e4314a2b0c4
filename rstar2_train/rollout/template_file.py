"""Finds the chat template of a model folder, and the form of calls that it writes. Reads no tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rstar2_train.api.roles import ModelSource, ToolParser
from rstar2_train.tools.call_form import parser_of_template

DEFAULT = "default"
"""Name of the template, among several of a tokenizer, that renders a conversation without tools."""


class ChatFormatError(ValueError):
    """The tokenizer or its chat template cannot be used, or cannot render a conversation."""


def tool_parser(folder: Path, source: ModelSource) -> ToolParser:
    """Return the form of calls of a job's model. Reads no tokenizer. `folder`: a folder with the model's template."""
    return source.tool_parser or parser_of_template(_template_text(folder, source))


def _template_text(folder: Path, source: ModelSource) -> str:
    """Return the chat template that a job's model is rendered with; empty if it has none."""
    file = Path(source.chat_template) if source.chat_template else None
    return file.read_text(encoding="utf-8") if file is not None and file.is_file() else stored_template(folder)


def stored_template(folder: Path) -> str:
    """Return the chat template of a folder; empty if it has none. Raises ValueError for a damaged file."""
    if (file := folder / "chat_template.jinja").is_file():
        return file.read_text(encoding="utf-8")
    config = folder / "tokenizer_config.json"
    content = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else None
    return default_template(content.get("chat_template") if isinstance(content, dict) else None) or ""


def own_template(folder: Path, templates: Any) -> str:
    """Return the chat template of a model folder that renders conversations.

    `templates`: that of its tokenizer, one or several with names. Raises ChatFormatError if none can be chosen.
    """
    if template := default_template(templates):
        return template
    if templates:
        names = ", ".join(sorted(map(str, templates)))
        raise ChatFormatError(f"there is no chat template {DEFAULT!r} among {names}: set spec.model.chatTemplate")
    if (folder / "chat_template.json").is_file():
        raise ChatFormatError(
            "chat_template.json is an old form that tokenizers do not read: write its chat_template to "
            "chat_template.jinja, or to a file that spec.model.chatTemplate names"
        )
    raise ChatFormatError("no chat template: add chat_template.jinja or set spec.model.chatTemplate")


def default_template(templates: Any) -> str | None:
    """Return the template for conversations without signatures: the only one, or that with the name of the default.

    Signatures of tools are in the system prompt, so a template for tools is never rendered. `templates`: as in
    tokenizer_config.json (a list of names and templates), or as transformers has them.
    """
    if isinstance(templates, list):
        entries = [entry for entry in templates if isinstance(entry, dict)]
        templates = {entry.get("name"): entry.get("template") for entry in entries}
    template = templates.get(DEFAULT) if isinstance(templates, dict) else templates
    return template if isinstance(template, str) else None
