"""The session's engine for this room."""

from tests.support.engine_fixtures import engine, models

__all__ = ["engine", "models"]
