"""The YAML loader: scalars as kubectl reads them, and errors with their place."""

import pytest
import yaml

from rstar2_train.api.loader import ManifestError, dump_yaml, parse_yaml, read_manifest


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-6", 5e-6),
        ("5.0e-6", 5e-6),
        ("1e3", 1000.0),
        ("0x10", 16),
        ("010", 8),
        ("0o10", 8),
        ("1_000", 1000),
        ("1:30", "1:30"),
        ("2026-01-02", "2026-01-02"),
        ("yes", True),
        ("off", False),
        ("n", False),
        ("~", None),
        ("'5e-6'", "5e-6"),
        (".5", 0.5),
        ("-3", -3),
        ("1.2.3", "1.2.3"),
        ("08", 8.0),
    ],
)
def test_loader_scalars_are_read_as_by_kubectl(text: str, value: object) -> None:
    """Every scalar has the type that kubectl gives it."""
    parsed = parse_yaml(f"a: {text}")["a"]
    assert parsed == value
    assert type(parsed) is type(value)


def test_loader_duplicate_key_names_its_line() -> None:
    """A duplicate key is an error with its line."""
    with pytest.raises(ManifestError, match="line 3: duplicate key 'a'"):
        parse_yaml("a: 1\nb: 2\na: 3\n")


def test_loader_invalid_yaml_names_its_line() -> None:
    """Invalid YAML is an error with its line."""
    with pytest.raises(ManifestError, match=r"f\.yaml: line 2"):
        parse_yaml("a: [1,\nb: }", source="f.yaml")


def test_loader_several_documents_need_one_job() -> None:
    """Of several documents the only job is returned; two jobs are an error."""
    text = "kind: ConfigMap\n---\nkind: AgenticRLJob\nmetadata: {name: x}\n"
    assert parse_yaml(text)["metadata"] == {"name": "x"}
    with pytest.raises(ManifestError, match="contains 2"):
        parse_yaml("kind: AgenticRLJob\n---\nkind: AgenticRLJob\n")


def test_loader_unreadable_files_name_the_cause(tmp_path) -> None:
    """A missing file, a directory, a binary file and a list have their own messages."""
    with pytest.raises(ManifestError, match="no such file"):
        read_manifest(tmp_path / "x.yaml")
    with pytest.raises(ManifestError, match="is a directory"):
        read_manifest(tmp_path)
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ManifestError, match="not a text file"):
        read_manifest(tmp_path / "b.yaml")
    (tmp_path / "l.yaml").write_text("- a\n")
    with pytest.raises(ManifestError, match="contains a value of type list"):
        read_manifest(tmp_path / "l.yaml")


@pytest.mark.parametrize("text", ["a: 1\nname: {{ job }}\n", "a: 1\n? [x, y]\n: 2\n"])
def test_loader_unfilled_template_names_its_line(text: str) -> None:
    """A template without its values is an error with its line."""
    with pytest.raises(ManifestError, match="line 2: a field name must be a string"):
        parse_yaml(text)


def test_loader_deep_nesting_is_one_line() -> None:
    """YAML that is nested too deeply is an error of one line."""
    with pytest.raises(ManifestError, match=r"^manifest: nested too deeply$"):
        parse_yaml("[" * 5000)


@pytest.mark.parametrize(
    "value",
    [
        *("1e-4", "5e6", "08", "1:30", "2026-01-02", "0o10", "1_0", "y", "off", "~", "", ".5", "<<", "="),
        *("two\nlines", "two\nlines\n", " \n x", "ü", "a: b"),
        *(5e-6, 1e22, 3, True, None),
    ],
)
def test_loader_dump_reads_back_with_both_readers(value: object) -> None:
    """Dumped values read back unchanged with this loader and with PyYAML."""
    shared = {"k": value}
    documents = [{"a": shared, "b": [shared]}]
    for text in (dump_yaml(documents), dump_yaml(documents, block=False)):
        for read in (parse_yaml, yaml.safe_load):
            assert read(text) == documents[0]
            assert type(read(text)["a"]["k"]) is type(value)
        assert "&" not in text
