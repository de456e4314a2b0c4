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
    "card", ["---\nconfigs: [\n---\n", "---\nconfigs: [x]\n---\n", "---\nconfigs: [{data_files: /etc/*}]\n---\n"]
)
def test_find_data_files_with_invalid_card_raises(tmp_path: Path, card: str) -> None:
    """An invalid card is an error with its name."""
    with pytest.raises(DataError, match=r"README\.md: "):
        find_data_files(str(_folder(tmp_path, "data.json", card=card)))


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
