"""A tokenizer folder for the tests of this room."""

from tests.support.model_fixtures import model_folder, protocol

__all__ = ["model_folder", "protocol"]
