"""A tokenizer folder for the tests of this room."""

from tests.support.model_fixtures import chat_format, model_folder

__all__ = ["chat_format", "model_folder"]
