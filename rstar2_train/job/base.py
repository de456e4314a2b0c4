"""What every AgenticRLJob model shares: camelCase names on the wire, no unknown fields, one text a field.

First room of the flow: a manifest becomes these models, and every other room reads them. Imports no torch.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

API_VERSION: Final = "rstar2.dev/v1alpha1"
KIND: Final = "AgenticRLJob"

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=40)]
"""A DNS label, short enough that `<job>-<stage>-<attempt>` still fits in one."""
Text = Annotated[str, StringConstraints(max_length=1024)]
"""A bounded string: the CRD must not hold unbounded ones."""
Probability = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]


class Model(BaseModel):
    """Base of all manifest models: unknown fields are errors, Python names are snake_case, manifests camelCase."""

    model_config = ConfigDict(
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
        validate_default=True,
        serialize_by_alias=True,
    )
