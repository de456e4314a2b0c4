"""The base of the JSON records of an evaluation (`records.py`)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class RecordModel(BaseModel):
    """Base of the records: unknown fields, NaN and infinity are errors, and each field has a docstring."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
