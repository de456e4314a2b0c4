"""Shared parts of all API models: camelCase names on the wire, no unknown fields, bounded strings and quantities.

The lowest module of the package; every other module of `api` builds on it. Imports no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

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
DATA_KEY: Final = r"^[-._a-zA-Z0-9]+$"
ENDPOINT: Final = r"^https?://([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/?$"
STORE: Final = (
    r"^((s3|gs|az)://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]|file:///[A-Za-z0-9_@+=,-][A-Za-z0-9_.@+=,-]*)"
    r"(/[A-Za-z0-9_@+=,-][A-Za-z0-9_.@+=,-]*)*/?$"
)
POD_FIELD: Final = (
    r"^(metadata[.](name|namespace|uid|(labels|annotations)\['[-A-Za-z0-9_./]+'\])"
    r"|spec[.](nodeName|serviceAccountName)|status[.](hostIP|hostIPs|podIP|podIPs))$"
)
DOMAIN_PATH: Final = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$"
_DEVICE: Final = r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
COMPUTE: Final = rf"^(cpu|memory|ephemeral-storage|hugepages-[A-Za-z0-9]+|{_DEVICE})$"
DEVICE: Final = rf"^{_DEVICE}$"
_LABEL_OF_HOST: Final = r"[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?"
_REGISTRY: Final = rf"({_LABEL_OF_HOST}([.]{_LABEL_OF_HOST})*|\[[0-9A-Fa-f:]+\])(:[0-9]{{1,5}})?"
_COMPONENT: Final = r"[a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*"
_DIGEST: Final = r"sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}"
IMAGE: Final = rf"^({_REGISTRY}/)?{_COMPONENT}(/{_COMPONENT})*(:[A-Za-z0-9_][-A-Za-z0-9_.]{{0,127}})?(@({_DIGEST}))?$"
REGISTRY_PREFIX: Final = rf"^{_REGISTRY}(/{_COMPONENT})*/?$"
PATTERNS: Final = {
    JOB_NAME: "lower-case letters, digits and '-'; the first character is a letter, the last a letter or digit",
    LABEL: "lower-case letters, digits and '-'; the first and last character are letters or digits",
    SUBDOMAIN: "lower-case letters, digits, '-' and '.'; the first and last character are letters or digits",
    OPTIONAL: "an empty string, or lower-case letters, digits, '-' and '.'; the first and last character are letters "
    "or digits",
    VARIABLE: "letters, digits and '_'; the first character is not a digit",
    FOLDER: "an absolute path of letters, digits and _.@+-, without a trailing '/'",
    RELATIVE: "a relative path without '.' or '..' components and without a trailing '/'",
    LABEL_KEY: "a label key: an optional domain and '/', then at most 63 letters, digits and -_.",
    LABEL_VALUE: "an empty string, or letters, digits and -_.; the first and last character are letters or digits",
    DATA_KEY: "letters, digits and -_.",
    ENDPOINT: "http:// or https://, a host and optionally a port, without user, path and query",
    STORE: "s3://BUCKET/PREFIX (also gs://, az://), or file:///FOLDER; components of PREFIX and FOLDER have letters, "
    "digits and _.@+=,- and do not start with '.'",
    POD_FIELD: "metadata.name, metadata.namespace, metadata.uid, metadata.labels['KEY'], metadata.annotations['KEY'], "
    "spec.nodeName, spec.serviceAccountName, status.hostIP, status.hostIPs, status.podIP, status.podIPs",
    DOMAIN_PATH: "a domain, '/' and a path, such as rstar2.dev/operator",
    COMPUTE: "cpu, memory, ephemeral-storage, hugepages-SIZE, or an extended resource such as amd.com/gpu",
    DEVICE: "an extended resource: DOMAIN/NAME, such as amd.com/gpu",
    IMAGE: "an image: HOST:PORT/PATH:TAG@DIGEST, of which only PATH is required, in lower case, such as "
    "registry.example.org/rstar2/trainer:0.1.0",
    REGISTRY_PREFIX: "HOST:PORT/PATH without a tag; PORT and PATH are optional, such as mirror.example.org/hub",
}
"""Pattern of a string -> its description in error messages."""

Name = Annotated[str, StringConstraints(pattern=LABEL, max_length=40)]
"""A DNS label, short enough that `<job>-<stage>-<attempt>` still fits in one."""
JobName = Annotated[str, StringConstraints(pattern=JOB_NAME, max_length=40)]
"""A `Name` whose first character is a letter, as the names of Services require."""
ObjectName = Annotated[str, StringConstraints(pattern=SUBDOMAIN, max_length=253)]
"""Name of an existing object of the cluster."""
OptionalName = Annotated[str, StringConstraints(pattern=OPTIONAL, max_length=253)]
"""An `ObjectName` or the empty string."""
ImageName = Annotated[str, StringConstraints(pattern=IMAGE, max_length=1024)]
"""Registry, repository, tag and digest of a container image, by the grammar that container runtimes use."""
RegistryPrefix = Annotated[str, StringConstraints(pattern=REGISTRY_PREFIX, max_length=255)]
"""Address of a registry, and a path in it."""
SecretKey = Annotated[str, StringConstraints(pattern=DATA_KEY, max_length=253)]
"""Key of a Secret or ConfigMap."""
Text = Annotated[str, StringConstraints(max_length=1024)]
"""A bounded string; the CRD must not contain unbounded strings."""
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
    """Accept what the API server accepts too: an integer or a string, but not a bare decimal such as 0.5."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and len(value) <= 32 and re.fullmatch(_QUANTITY, value):
        return value
    raise ValueError('should be an integer or a quantity in quotes, such as "500m", "0.5" or "16Gi"')


def amount(value: str | int) -> Decimal:
    """Return the value of a Quantity in its base unit (bytes, cores, devices)."""
    if isinstance(value, int):
        return Decimal(value)
    if value[-1] not in _UNITS and value[-2:] not in _UNITS:
        return Decimal(value)  # 5, 0.5, 1e3
    unit = value[-2:] if value[-2:] in _UNITS else value[-1]
    return Decimal(value.removesuffix(unit)) * _UNITS[unit]


def keys(pattern: str) -> AfterValidator:
    """Return a validator of a mapping's keys, which a structural schema cannot constrain."""

    def check(value: dict[str, Any]) -> dict[str, Any]:
        for key in value:
            if not re.fullmatch(pattern, key):
                raise ValueError(f"key {key!r} is not allowed; allowed: {PATTERNS[pattern]}")
        return value

    return AfterValidator(check)


def _bounded(value: object) -> object:
    """Reject an untyped value that is larger than the CRD allows."""
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
"""A Kubernetes quantity: 4, "500m", "16Gi"."""
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
"""A value of any type (an argument of vLLM), bounded in size."""


@dataclass(frozen=True, slots=True)
class ListType:
    """How the entries of a list are merged: the `x-kubernetes-list-type` of its schema.

    The API server rejects repeated entries of a set and repeated keys of a map; `rules.py` does the same offline.
    """

    kind: Literal["atomic", "set", "map"]
    key: str = ""
    """JSON name of the key of a map's entries."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        keys = {"x-kubernetes-list-map-keys": [self.key]} if self.key else {}
        return handler(schema) | {"x-kubernetes-list-type": self.kind} | keys


ATOMIC: Final = ListType("atomic")
SET: Final = ListType("set")
BY_NAME: Final = ListType("map", "name")
ATOMIC_MAP: Final[dict[str, Any]] = {"x-kubernetes-map-type": "atomic"}
"""Schema extension of an object that one manager sets as a whole."""


class ApiModel(BaseModel):
    """Base of all API models: unknown fields are errors, Python names are snake_case, JSON names camelCase."""

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


class LocalReference(ApiModel):
    """A reference to an object in the job's namespace."""

    model_config = ApiModel.model_config | {"json_schema_extra": ATOMIC_MAP}

    name: ObjectName
    """Name of the object."""


class KeyReference(LocalReference):
    """A reference to one key of a Secret in the job's namespace."""

    key: SecretKey
    """Key of the Secret."""
