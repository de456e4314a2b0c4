"""The YAML loader reads scalars as kubectl does."""

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
def test_scalars(text: str, value: object) -> None:
    parsed = parse_yaml(f"a: {text}")["a"]
    assert parsed == value
    assert type(parsed) is type(value)


def test_repeated_key_names_its_line() -> None:
    with pytest.raises(ManifestError, match="line 3: the key 'a' stands twice"):
        parse_yaml("a: 1\nb: 2\na: 3\n")


def test_broken_yaml_names_its_line() -> None:
    with pytest.raises(ManifestError, match=r"f\.yaml: line 2"):
        parse_yaml("a: [1,\nb: }", source="f.yaml")


def test_picks_the_job_among_documents() -> None:
    text = "kind: ConfigMap\n---\nkind: AgenticRLJob\nmetadata: {name: x}\n"
    assert parse_yaml(text)["metadata"] == {"name": "x"}
    with pytest.raises(ManifestError, match="found 2"):
        parse_yaml("kind: AgenticRLJob\n---\nkind: AgenticRLJob\n")


def test_missing_file_folder_and_binary(tmp_path) -> None:
    with pytest.raises(ManifestError, match="no such file"):
        read_manifest(tmp_path / "x.yaml")
    with pytest.raises(ManifestError, match="is a folder"):
        read_manifest(tmp_path)
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ManifestError, match="not a text file"):
        read_manifest(tmp_path / "b.yaml")
    (tmp_path / "l.yaml").write_text("- a\n")
    with pytest.raises(ManifestError, match="holds a list"):
        read_manifest(tmp_path / "l.yaml")


@pytest.mark.parametrize("text", ["a: 1\nname: {{ job }}\n", "a: 1\n? [x, y]\n: 2\n"])
def test_a_template_that_was_not_filled_in_names_its_line(text: str) -> None:
    with pytest.raises(ManifestError, match="line 2: a field's name is a word"):
        parse_yaml(text)


def test_what_is_nested_too_deep_is_said_in_a_line() -> None:
    with pytest.raises(ManifestError, match=r"^manifest: nested too deep$"):
        parse_yaml("[" * 5000)


@pytest.mark.parametrize(
    "value",
    [
        *("1e-4", "5e6", "08", "1:30", "2026-01-02", "0o10", "1_0", "y", "off", "~", "", ".5", "<<", "="),
        *("two\nlines", "two\nlines\n", " \n x", "ü", "a: b"),
        *(5e-6, 1e22, 3, True, None),
    ],
)
def test_what_is_written_reads_back_with_either_reader(value: object) -> None:
    shared = {"k": value}
    documents = [{"a": shared, "b": [shared]}]
    for text in (dump_yaml(documents), dump_yaml(documents, block=False)):
        for read in (parse_yaml, yaml.safe_load):
            assert read(text) == documents[0]
            assert type(read(text)["a"]["k"]) is type(value)
        assert "&" not in text
