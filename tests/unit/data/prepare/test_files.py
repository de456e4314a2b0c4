"""Which files a name stands for: those of the dataset's card, or those that the files' names tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2_train.data.prepare.files import data_files
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
    return [str(path.relative_to(root)) for path in data_files(f"{root}{choice}")]


def test_the_card_says_which_files_make_up_a_split(tmp_path: Path) -> None:
    names = ("all/train-0.parquet", "en/train-00001.parquet", "en/train-00000.parquet", "en/test-0.parquet")
    root = _folder(tmp_path, *names, card=CARD)
    assert _names(root, "@en") == ["en/train-00000.parquet", "en/train-00001.parquet"]
    assert _names(root, "@en/test") == _names(root, "@test") == ["en/test-0.parquet"]
    with pytest.raises(DataError) as caught:  # cn was not downloaded
        data_files(str(root))
    assert f"choose one: give {root}@{{all/train, en/test, en/train}}" in str(caught.value)
    with pytest.raises(DataError, match="'fr' is none or several"):
        data_files(f"{root}@fr")


@pytest.mark.parametrize(
    ("data_files_of_card", "chosen"),
    [("data.json", ["data.json"]), ("[data.json, more.json]", ["data.json", "more.json"])],
)
def test_a_card_may_name_files_without_splits(tmp_path: Path, data_files_of_card: str, chosen: list[str]) -> None:
    card = f"---\nconfigs:\n- config_name: default\n  data_files: {data_files_of_card}\n---\n"
    assert _names(_folder(tmp_path, "data.json", "more.json", card=card)) == chosen


@pytest.mark.parametrize(
    "card", ["---\nconfigs: [\n---\n", "---\nconfigs: [x]\n---\n", "---\nconfigs: [{data_files: /etc/*}]\n---\n"]
)
def test_a_broken_card_is_named(tmp_path: Path, card: str) -> None:
    with pytest.raises(DataError, match=r"README\.md: "):
        data_files(str(_folder(tmp_path, "data.json", card=card)))


def test_without_a_card_the_names_tell(tmp_path: Path) -> None:
    saved = _folder(
        tmp_path, "train/data-00000-of-00002.arrow", "train/data-00001-of-00002.arrow", "train/state.json",
        "test/data-00000-of-00001.arrow",
        "dataset_dict.json", ".cache/train.jsonl",
    )  # fmt: skip
    assert _names(saved) == ["train/data-00000-of-00002.arrow", "train/data-00001-of-00002.arrow"]
    assert _names(saved, "@test") == ["test/data-00000-of-00001.arrow"]


def test_shards_are_told_apart_by_their_names(tmp_path: Path) -> None:
    root = _folder(tmp_path, "data/full-00000-of-00001.parquet", "data/easy-00000-of-00001.parquet", card="# no header")
    assert _names(root, "@full") == ["data/full-00000-of-00001.parquet"]
    with pytest.raises(DataError, match="easy, full"):
        data_files(str(root))


def test_train_is_taken_where_there_is_one(tmp_path: Path) -> None:
    root = _folder(tmp_path, "train.jsonl", "test.jsonl")
    assert _names(root) == ["train.jsonl"] and _names(root, "@test") == ["test.jsonl"]


def test_files_and_patterns(tmp_path: Path) -> None:
    root = _folder(tmp_path, "a@b.jsonl", "x/2.parquet", "x/1.parquet", "x/1.txt")
    assert _names(root, "/a@b.jsonl") == ["a@b.jsonl"]
    assert _names(root, "/x/*") == ["x/1.parquet", "x/2.parquet"]
    for missing in ("none", "y/*.jsonl", "none@train"):
        with pytest.raises(DataError, match=r"no such file or folder|is not a folder"):
            data_files(str(root / missing))
    (root / "empty").mkdir()
    with pytest.raises(DataError, match=r"no \.jsonl"):
        data_files(str(root / "empty"))
