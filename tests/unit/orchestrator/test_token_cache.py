"""The cache of tokenised demonstrations: used again as it is, and rebuilt when it does not fit or is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rstar2_train.api.stages import SFTStage
from rstar2_train.data.demonstrations import read_demonstrations
from rstar2_train.data.problems import DataError
from rstar2_train.data.tiny import SMOKE, write_tiny
from rstar2_train.orchestrator import token_cache
from rstar2_train.orchestrator.stages.sft import DemonstrationBatches
from rstar2_train.orchestrator.token_cache import load_tokens
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.tools.toolset import Toolset


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and tokenizer of the tiny task."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder, seed=0, recipe=SMOKE)
    return folder


class Loads:
    """Loads one cache, and counts the tokenised rows of each load."""

    def __init__(self, tiny: Path, folder: Path) -> None:
        self.data, self.folder = folder / "sft.jsonl", folder / "stage" / "tokens"
        rows = dict.fromkeys((tiny / "sft.jsonl").read_text().splitlines(keepends=True))
        self.data.write_text("".join(rows))
        self.chat_format = ChatFormat.load(tiny / "base")
        self.reports: list[tuple[int, int]] = []

    def __call__(self) -> token_cache.TokenCache:
        self.reports.clear()
        return load_tokens(self.folder, self.data, self.chat_format, report=lambda *each: self.reports.append(each))


@pytest.fixture
def load(tiny: Path, tmp_path: Path) -> Loads:
    return Loads(tiny, tmp_path)


def test_load_tokens_returns_the_encoded_rows(load: Loads) -> None:
    """Ids, mask and level of each row; the second load tokenises nothing and has the same content."""
    cache = load()
    rows = list(read_demonstrations(load.data))
    assert load.reports[-1] == (len(rows), len(rows))
    assert len(load.reports) > 2
    again = load()
    assert load.reports == []
    assert isinstance(again.tokens, np.memmap)
    for tokens in (cache, again):
        for index in (0, 1, len(rows) - 1):
            encoded = load.chat_format.encode_conversation(rows[index].messages)
            example = tokens.example(index)
            assert (list(example.ids), list(example.mask)) == (encoded.token_ids, encoded.mask)
            assert tokens.levels[index] == rows[index].level
            assert tokens.lengths[index] == len(encoded.token_ids)


@pytest.mark.parametrize("name", [token_cache.TOKENS, token_cache.ENDS, token_cache.LEVELS, token_cache.MANIFEST])
@pytest.mark.parametrize("damage", ["cut", "changed", "missing"])
def test_load_tokens_rebuilds_a_damaged_cache(load: Loads, name: str, damage: str) -> None:
    """A file that is cut, changed or missing causes a new tokenisation, with the same result."""
    expected = np.array(load().tokens)
    file = load.folder / name
    content = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    else:
        content[len(content) // 2] ^= 1
        file.write_bytes(content if damage == "changed" else content[: len(content) // 2])
    again = load()
    assert load.reports
    assert np.array_equal(again.tokens, expected)
    load()
    assert load.reports == []


def test_load_tokens_rebuilds_after_a_change(load: Loads, tiny: Path) -> None:
    """Other data, another template, form of tools and another tokenizer each cause a new tokenisation."""
    load()
    load.data.write_text("".join(load.data.read_text().splitlines(keepends=True)[:-1]))
    before = load()
    assert load.reports
    assert len(before.ends) == load.reports[-1][0]
    template = (load.chat_format.tokenizer.chat_template or "").replace("message.role +", "message.role + ' '  +")
    load.chat_format = ChatFormat(load.chat_format.tokenizer, chat_template=template)
    assert len(load().tokens) != len(before.tokens)
    load.chat_format = ChatFormat(load.chat_format.tokenizer, chat_template=template, tools=Toolset(()))
    load()
    assert load.reports
    load.chat_format.tokenizer.add_tokens(["whole"])
    load()
    assert load.reports


def test_load_tokens_stopped_leaves_no_files(load: Loads) -> None:
    """An exception of the report, such as a stop request, leaves no part of a cache; nor does a row that is invalid."""

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_tokens(load.folder, load.data, load.chat_format, report=stop)
    load.data.write_text(json.dumps({"messages": [{"role": "assistant", "content": "x"}]}) + "\n")
    with pytest.raises(DataError, match=r":1: messages\[0\]"):
        load()
    assert list(load.folder.parent.iterdir()) == []


@pytest.mark.parametrize("rows", [None, 0, 10])
def test_batches_keep_held_out_rows_apart(load: Loads, rows: int | None) -> None:
    """A held-out demonstration is never trained on. A small file has none by default."""
    settings = SFTStage.model_validate({"data": "sft.jsonl", "batchSize": 16, "epochs": 1, "heldOutRows": rows})
    tokens = load()
    batches = DemonstrationBatches(tokens, settings=settings, seed=4)
    held_out = [bytes(np.asarray(each.ids)) for each in batches.held_out]
    trained = {bytes(np.asarray(each.ids)) for step in range(batches.steps) for each in batches.batch(step)}
    assert len(held_out) == (rows or 0)
    assert trained and not trained & set(held_out)
    again = DemonstrationBatches(load(), settings=settings, seed=4)
    assert [bytes(np.asarray(each.ids)) for each in again.held_out] == held_out


@pytest.mark.parametrize(
    ("fields", "reason"), [({"heldOutRows": 1000}, "heldOutRows is 1000, of "), ({"shortestFirstSteps": 5}, "level 1")]
)
def test_batches_without_the_rows_of_a_setting_are_refused(load: Loads, fields: dict[str, int], reason: str) -> None:
    """The usable rows are known after the tokenisation; no setting is changed or ignored."""
    settings = SFTStage.model_validate({"data": "sft.jsonl"} | fields)
    tokens = load()
    tokens.levels[:] = 2
    with pytest.raises(DataError, match=reason):
        DemonstrationBatches(tokens, settings=settings, seed=4)
