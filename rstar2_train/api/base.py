"""What every AgenticRLJob model shares: camelCase names on the wire, no unknown fields, bounded texts and amounts.

First room of the flow: a manifest becomes these models, and every other room reads them. Imports no torch.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema
from pydantic.alias_generators import to_camel

API_VERSION: Final = "rstar2.dev/v1alpha1"
KIND: Final = "AgenticRLJob"

JOB_NAME: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
LABEL: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN: Final = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"
OPTIONAL: Final = r"^([a-z0-9]([-.a-z0-9]*[a-z0-9])?)?$"
VARIABLE: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"
FOLDER: Final = r"^(/[A-Za-z0-9_.@+-]+)+$"
RELATIVE: Final = r"^([^/.][^/]*|[.][^/.][^/]*|[.][.][^/]+)(/([^/.][^/]*|[.][^/.][^/]*|[.][.][^/]+))*$"
LABEL_KEY: Final = r"^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
LABEL_VALUE: Final = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
_DEVICE: Final = r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
COMPUTE: Final = rf"^(cpu|memory|ephemeral-storage|hugepages-[A-Za-z0-9]+|{_DEVICE})$"
DEVICE: Final = rf"^{_DEVICE}$"
OPTIONAL_DEVICE: Final = rf"^({_DEVICE})?$"
IMAGE: Final = r"^([A-Za-z0-9][A-Za-z0-9._:@/-]*)?$"
PATTERNS: Final = {
    JOB_NAME: "lower-case letters, digits and '-', beginning with a letter and ending with a letter or digit",
    LABEL: "lower-case letters, digits and '-', beginning and ending with a letter or digit",
    SUBDOMAIN: "lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit",
    OPTIONAL: "lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit; or nothing",
    VARIABLE: "letters, digits and '_', not beginning with a digit",
    FOLDER: "an absolute path of letters, digits and _.@+-, without a '/' at the end",
    RELATIVE: "a relative path with no . or .. in it and without a '/' at the end",
    LABEL_KEY: "a label's key: letters, digits and -_., at most 63; before it a domain and '/' if it has one",
    LABEL_VALUE: "letters, digits and -_., beginning and ending with a letter or digit; or nothing",
    COMPUTE: "cpu, memory, ephemeral-storage, hugepages-SIZE, or a device with its domain, such as amd.com/gpu",
    DEVICE: "an extended resource: a domain, '/' and a name, such as amd.com/gpu",
    OPTIONAL_DEVICE: "an extended resource: a domain, '/' and a name, such as amd.com/gpu; or nothing",
    IMAGE: "an image's name without blanks, such as registry.example.org/rstar2/trainer:0.1.0",
}
"""Pattern of a text -> the same in words, for messages."""

Name = Annotated[str, StringConstraints(pattern=LABEL, max_length=40)]
"""A DNS label, short enough that `<job>-<stage>-<attempt>` still fits in one."""
JobName = Annotated[str, StringConstraints(pattern=JOB_NAME, max_length=40)]
"""The same, beginning with a letter as the names of Services must."""
ObjectName = Annotated[str, StringConstraints(pattern=SUBDOMAIN, max_length=253)]
"""Name of an object of the cluster that is not ours."""
OptionalName = Annotated[str, StringConstraints(pattern=OPTIONAL, max_length=253)]
"""The same, or empty."""
ImageName = Annotated[str, StringConstraints(pattern=IMAGE, max_length=1024)]
"""Where an image is, and its tag or digest."""
Text = Annotated[str, StringConstraints(max_length=1024)]
"""A bounded string: the CRD must not hold unbounded ones."""
Probability = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]

_QUANTITY: Final = r"^[0-9]+(\.[0-9]+)?([numkMGTPE]|[KMGTPE]i|[eE][0-9]+)?$"
_UNITS: Final = {
    **{unit: Decimal(1000) ** power for power, unit in ((-3, "n"), (-2, "u"), (-1, "m"), (1, "k"), (1, "K"))},
    **{unit: Decimal(1000) ** power for power, unit in enumerate("MGTPE", start=2)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
}
_LONGEST_VALUE: Final = 4096
_MOST_ENTRIES: Final = 64


def _quantity(value: object) -> object:
    """An amount as both this and the API server take it: a whole number or a text; never 0.5 without quotes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and len(value) <= 32 and re.fullmatch(_QUANTITY, value):
        return value
    raise ValueError('should be a whole number or an amount in quotes, such as "500m", "0.5" or "16Gi"')


def amount(value: str | int) -> Decimal:
    """What a Quantity stands for: bytes, cores, pieces."""
    if isinstance(value, int):
        return Decimal(value)
    if value[-1] not in _UNITS and value[-2:] not in _UNITS:
        return Decimal(value)  # 5, 0.5, 1e3
    unit = value[-2:] if value[-2:] in _UNITS else value[-1]
    return Decimal(value.removesuffix(unit)) * _UNITS[unit]


def keys(pattern: str) -> AfterValidator:
    """A validator of a mapping's keys, which the API server's schema cannot bound."""

    def check(value: dict[str, Any]) -> dict[str, Any]:
        for key in value:
            if not re.fullmatch(pattern, key):
                raise ValueError(f"the name {key!r} is not allowed; {PATTERNS[pattern]}")
        return value

    return AfterValidator(check)


def _bounded(value: object) -> object:
    """Refuse a value without type that is larger than the CRD allows."""
    if isinstance(value, str) and len(value) > _LONGEST_VALUE:
        raise ValueError(f"should have at most {_LONGEST_VALUE} characters")
    if isinstance(value, list | dict) and len(value) > _MOST_ENTRIES:
        raise ValueError(f"should have at most {_MOST_ENTRIES} entries")
    return value


Quantity = Annotated[
    str | int,
    BeforeValidator(_quantity),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": _QUANTITY,
            "maxLength": 32,
        }
    ),
]
"""An amount in Kubernetes' notation: 4, "500m", "16Gi"."""
AnyValue = Annotated[
    Any,
    AfterValidator(_bounded),
    WithJsonSchema(
        {
            "x-kubernetes-preserve-unknown-fields": True,
            "maxLength": _LONGEST_VALUE,
            "maxItems": _MOST_ENTRIES,
            "maxProperties": _MOST_ENTRIES,
        }
    ),
]
"""A value whose type somebody else defines (vLLM's arguments): bounded in size all the same."""


class ApiModel(BaseModel):
    """Base of all manifest models: unknown fields are errors, Python names are snake_case, manifests camelCase."""

    model_config = ConfigDict(
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
        validate_default=True,
        serialize_by_alias=True,
        allow_inf_nan=False,
        strict=True,
    )
