"""A model folder with a tokenizer, for the tests of this package."""

from tests.support.model_fixtures import chat_format, model_folder

__all__ = ["chat_format", "model_folder"]
