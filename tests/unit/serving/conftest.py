"""Fixtures of this folder: a model folder and its chat format."""

from tests.support.model_fixtures import chat_format, model_folder

__all__ = ["chat_format", "model_folder"]
