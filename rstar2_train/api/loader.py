"""Reader and writer of manifests in YAML, with the semantics of kubectl.

PyYAML implements YAML 1.1 and differs from kubectl's reader: it reads `5e-6` as a string, `1:30` as a number and
`2026-01-01` as a date, and accepts repeated keys. This loader reads them as kubectl does. `dump_yaml` quotes every
string that one of the two readers would parse as another type.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import yaml

from rstar2_train.api.base import KIND
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.utils.text import reason

MANIFESTS = (".yaml", ".yml", ".json")
"""Ends of the names of manifests; no name of a job or a stage has a dot."""

MAX_CHARACTERS = 4_000_000
"""More than an API server takes. A device or a file of rows has more, and is not read to its end."""


class ManifestError(Exception):
    """A manifest that cannot be read. The message has the place and the cause."""


class _KubectlLoader(yaml.SafeLoader):
    """SafeLoader with kubectl's scalar rules and no repeated keys."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, Hashable):
                raise ManifestError(
                    f"line {line}: a field name must be a string; is this a template without its values?"
                )
            if key in seen and key != "<<":
                raise ManifestError(f"line {line}: duplicate key {key!r}; keep one of them")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_RULES = (
    (
        "tag:yaml.org,2002:bool",
        r"(?:y|Y|yes|Yes|YES|n|N|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)",
    ),
    ("tag:yaml.org,2002:int", r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|0|[1-9][0-9_]*)"),
    ("tag:yaml.org,2002:float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"),
    ("tag:yaml.org,2002:float", r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))"),
    ("tag:yaml.org,2002:merge", r"<<"),
    ("tag:yaml.org,2002:null", r"(?:~|null|Null|NULL|)"),
)


COMPACT_LENGTH = 400
"""Characters of a mapping up to which `dump_yaml` writes it without one line per entry."""


class _Dumper(yaml.SafeDumper):
    """SafeDumper for both readers: multi-line strings as blocks, no anchors, which API servers reject."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)
for _tag, _pattern in _RULES:
    for _kind in (_KubectlLoader, _Dumper):
        _kind.add_implicit_resolver(_tag, re.compile(rf"^{_pattern}$"), None)


def _construct_bool(_loader: yaml.SafeLoader, node: yaml.ScalarNode) -> bool:
    return str(node.value).lower() in ("y", "yes", "true", "on")


def _construct_int(_loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = str(node.value).replace("_", "")
    digits = text.lstrip("+-")
    if len(digits) > 1 and digits[0] == "0" and digits[1] in "01234567":
        text = text.replace("0", "0o", 1)  # kubectl reads 010 as an octal number
    return int(text, 0)


_KubectlLoader.add_constructor("tag:yaml.org,2002:bool", _construct_bool)
_KubectlLoader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def parse_yaml(text: str, *, source: str = "manifest") -> Any:
    """Return the only document of `text`, or its only AgenticRLJob. Raises ManifestError with the line of an error."""
    try:
        documents = [doc for doc in yaml.load_all(text, Loader=_KubectlLoader) if doc is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        raise ManifestError(f"{source}:{place} not valid YAML: {error.problem}") from error
    except RecursionError as error:
        raise ManifestError(f"{source}: nested too deeply") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ManifestError(f"{source}: not valid YAML: {error}") from error
    except ManifestError as error:
        raise ManifestError(f"{source}: {error}") from error
    if len(documents) > 1:
        documents = [doc for doc in documents if isinstance(doc, dict) and doc.get("kind") == KIND]
    if len(documents) != 1:
        raise ManifestError(f"{source}: contains {len(documents)} {KIND} documents; use a file with exactly one")
    return documents[0]


class _CompactDumper(_Dumper):
    """Writes short mappings in braces."""

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> yaml.MappingNode:
        short = len(str(mapping)) <= COMPACT_LENGTH
        return super().represent_mapping(tag, mapping, flow_style or short or None)


def dump_yaml(documents: Iterable[Any], *, block: bool = True) -> str:
    """Return the documents as YAML that kubectl and PyYAML read back unchanged.

    `block` False writes short lists and mappings in braces.
    """
    as_list = list(documents)
    return yaml.dump_all(
        as_list,
        Dumper=_Dumper if block else _CompactDumper,
        explicit_start=len(as_list) > 1,
        sort_keys=False,
        default_flow_style=False if block else None,
        allow_unicode=True,
        width=118,
    )


def read_text(path: Path) -> str:
    """Return the text of a manifest. Raises ManifestError with one line: cause and action."""
    if not path.exists():
        raise ManifestError(f"{path}: no such file; pass the path of an {KIND} manifest, such as examples/tiny.yaml")
    if path.is_dir():
        raise ManifestError(f"{path}: is a directory; pass the path of an {KIND} manifest")
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_CHARACTERS + 1)
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: not a text file ({error}); save it as UTF-8") from error
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {reason(error)}") from error
    if len(text) > MAX_CHARACTERS:
        raise ManifestError(f"{path}: has more than {MAX_CHARACTERS:,} characters; pass the path of an {KIND} manifest")
    return text


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a file as plain data. Raises ManifestError with one line: cause and action."""
    return parse_manifest(read_text(path), path)


def parse_manifest(text: str, path: Path) -> dict[str, Any]:
    """Return the manifest of the text of a file as plain data. Raises ManifestError."""
    data = parse_yaml(text, source=str(path))
    if not isinstance(data, dict):
        raise ManifestError(f"{path}: contains a value of type {type(data).__name__}, not an {KIND}")
    return data


def read_source(job_file: Path) -> AgenticRLJob:
    """Return the job of the user. In a cluster the job file has paths, and source.json next to it the sources."""
    return AgenticRLJob.model_validate_json(job_file.with_name("source.json").read_text(encoding="utf-8"))
