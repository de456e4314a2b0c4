"""The base of the JSON records of an evaluation (`records.py`)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class RecordModel(BaseModel):
    """Base of the records: unknown fields are an error, and each field has a docstring."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
