"""The data files of a command-line argument: by the dataset's card, or by the file names."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2_train.data.prepare.files import find_data_files
from rstar2_train.data.readers import DataError

CARD = """---
license: mit
configs:
- config_name: all
  data_files:
  - split: train
    path: all/train-*
- config_name: en
  data_files:
  - split: train
    path: [en/train-00000*, en/train-00001*]
  - split: test
    path: en/test-*
- config_name: cn
  data_files:
  - split: train
    path: cn/train-*
---
# A dataset
"""


def _folder(root: Path, *names: str, card: str = "") -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    if card:
        (root / "README.md").write_text(card)
    return root


def _names(root: Path, choice: str = "") -> list[str]:
    return [str(path.relative_to(root)) for path in find_data_files(f"{root}{choice}")]


def test_find_data_files_with_card_uses_its_splits(tmp_path: Path) -> None:
    """The card of a dataset determines the files of a split."""
    names = ("all/train-0.parquet", "en/train-00001.parquet", "en/train-00000.parquet", "en/test-0.parquet")
    root = _folder(tmp_path, *names, card=CARD)
    assert _names(root, "@en") == ["en/train-00000.parquet", "en/train-00001.parquet"]
    assert _names(root, "@en/test") == _names(root, "@test") == ["en/test-0.parquet"]
    with pytest.raises(DataError) as caught:  # cn is not downloaded
        find_data_files(str(root))
    assert f"several splits; select one with {root}@{{all/train, en/test, en/train}}" in str(caught.value)
    with pytest.raises(DataError, match="@fr does not select exactly one split"):
        find_data_files(f"{root}@fr")


@pytest.mark.parametrize(
    ("data_files_of_card", "chosen"),
    [("data.json", ["data.json"]), ("[data.json, more.json]", ["data.json", "more.json"])],
)
def test_find_data_files_with_card_without_splits(tmp_path: Path, data_files_of_card: str, chosen: list[str]) -> None:
    """A card may list files without splits."""
    card = f"---\nconfigs:\n- config_name: default\n  data_files: {data_files_of_card}\n---\n"
    assert _names(_folder(tmp_path, "data.json", "more.json", card=card)) == chosen


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("configs: [", "the header is not valid YAML"),
        ("date: 2024-13-45", "the header is not valid YAML"),
        ("configs: [x]", "configs must be a list of objects"),
        ("configs: 5", "configs must be a list of objects"),
        ("configs: [{data_files: /etc/*}]", "Non-relative patterns are unsupported"),
        ("configs: [{data_files: {train: data.json}}]", "data_files must be patterns, or a list of"),
        ("configs: [{data_files: [data.json, 5]}]", "data_files must be patterns, or a list of"),
        ("configs: [{data_files: [{split: train, path: 5}]}]", "data_files must be patterns, or a list of"),
        ("configs: [{data_dir: 5, data_files: x.json}]", "none of the data_files x.json exists"),
        ("configs: [{data_files: x.json}]", "none of the data_files x.json exists; download them"),
        ("\udcff", "can't decode byte 0xff"),
    ],
)
def test_find_data_files_with_invalid_card_raises(tmp_path: Path, header: str, message: str) -> None:
    """An invalid card is an error with its name."""
    card = tmp_path / "README.md"
    card.write_text(f"---\n{header}\n---\n", encoding="utf-8", errors="surrogateescape")
    with pytest.raises(DataError) as caught:
        find_data_files(str(_folder(tmp_path, "data.json")))
    assert str(caught.value).startswith(f"{card}: ") and message in str(caught.value)


def test_find_data_files_with_card_reads_data_dir_alone(tmp_path: Path) -> None:
    """Files outside of the folder of a configuration are not of it."""
    card = "---\nconfigs:\n- {config_name: a, data_dir: sub}\n- {config_name: b, data_dir: }\n---\n"
    assert _names(_folder(tmp_path, "data.json", "sub/more.json", card=card)) == ["sub/more.json"]


@pytest.mark.parametrize(
    ("names", "argument", "message"),
    [
        (["a.jsonl", "b.jsonl.gz"], "", "b.jsonl.gz: a file of this type is not read; convert it"),
        (["a.jsonl", "b.JSONL"], "", "b.JSONL: a file of this type is not read"),
        (["a.jsonl", "b.tsv"], "/*", "b.tsv: a file of this type is not read"),
        (["a.jsonl", "b.ndjson.zst"], "/*", "b.ndjson.zst: a file of this type is not read"),
        (["slice=x/a.parquet", "slice=y/a.parquet"], "", "the column in the folder name 'slice=x' is not read"),
        (["slice=x/a.parquet"], "/*/a.parquet", "the column in the folder name 'slice=x' is not read"),
        (["a-00000-of-00003.arrow", "a-00002-of-00003.arrow"], "", "2 of the 3 files a-*-of-00003 exist"),
        (["link/a.jsonl", "b.jsonl"], "", "link: a link to a folder is not followed; name the folder"),
        (["a.jsonl"], "/a**b/*", "Invalid pattern"),
    ],
)
def test_find_data_files_leaves_no_data_file_out(tmp_path: Path, names: list[str], argument: str, message: str) -> None:
    """A file that would be left out, or a column that the name of a folder has, is an error with its name."""
    root = _folder(tmp_path / "root", *names)
    if (root / "link").exists():
        (root / "link").rename(tmp_path / "other")
        (root / "link").symlink_to(tmp_path / "other")
    with pytest.raises(DataError) as caught:
        find_data_files(f"{root}{argument}")
    assert message in str(caught.value)


@pytest.mark.parametrize("location", ["", "@train", "~no-such-user/a.jsonl"])
def test_find_data_files_of_no_path_raises(location: str) -> None:
    """An unset variable of a shell does not select the current folder."""
    with pytest.raises(DataError, match=r"is empty|no such user on this machine"):
        find_data_files(location)


def test_find_data_files_of_pattern_skips_hidden_files(tmp_path: Path) -> None:
    """As a shell does: programs put files next to data that are no data, such as `._a.jsonl`."""
    root = _folder(tmp_path, "a.jsonl", "._a.jsonl", "_SUCCESS", "README.md", ".cache/b.jsonl")
    assert _names(root, "/*") == _names(root) == ["a.jsonl"]
    assert _names(root, "/.*/*.jsonl") == [".cache/b.jsonl"]


def test_find_data_files_without_card_uses_file_names(tmp_path: Path) -> None:
    """Without a card, folder and file names determine the split."""
    saved = _folder(
        tmp_path, "train/data-00000-of-00002.arrow", "train/data-00001-of-00002.arrow", "train/state.json",
        "test/data-00000-of-00001.arrow",
        "dataset_dict.json", ".cache/train.jsonl",
    )  # fmt: skip
    assert _names(saved) == ["train/data-00000-of-00002.arrow", "train/data-00001-of-00002.arrow"]
    assert _names(saved, "@test") == ["test/data-00000-of-00001.arrow"]


def test_find_data_files_distinguishes_shard_names(tmp_path: Path) -> None:
    """The name before the shard number is the split."""
    root = _folder(tmp_path, "data/full-00000-of-00001.parquet", "data/easy-00000-of-00001.parquet", card="# no header")
    assert _names(root, "@full") == ["data/full-00000-of-00001.parquet"]
    with pytest.raises(DataError, match="easy, full"):
        find_data_files(str(root))


def test_find_data_files_defaults_to_train(tmp_path: Path) -> None:
    """`train` is the default split."""
    root = _folder(tmp_path, "train.jsonl", "test.jsonl")
    assert _names(root) == ["train.jsonl"] and _names(root, "@test") == ["test.jsonl"]


def test_find_data_files_of_file_pattern_and_missing(tmp_path: Path) -> None:
    """A file, a pattern, and a missing file or folder."""
    root = _folder(tmp_path, "a@b.jsonl", "x/2.parquet", "x/1.parquet", "x/1.txt")
    assert _names(root, "/a@b.jsonl") == ["a@b.jsonl"]
    assert _names(root, "/x/*") == ["x/1.parquet", "x/2.parquet"]
    for missing in ("none", "y/*.jsonl", "none@train"):
        with pytest.raises(DataError, match=r"no such file or folder|is not a folder"):
            find_data_files(str(root / missing))
    (root / "empty").mkdir()
    with pytest.raises(DataError, match=r"no \.jsonl"):
        find_data_files(str(root / "empty"))
