"""The files of a model folder besides the tokenizer: the ends of turns that they list, and the date in prompts."""

from __future__ import annotations

import datetime
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.state_dir import JobState
from rstar2_train.capacity.config_file import GENERATION_CONFIG
from rstar2_train.orchestrator.sessions import chat_date
from rstar2_train.rollout.chat_format import ChatFormat, ChatFormatError
from rstar2_train.trainer.model_files import copy_companions
from tests.support.chat_templates import CHATML, LLAMA32, SPECIAL_TOKENS

LLAMA31_ENDS = ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]


def _folder(base: Path, folder: Path, *, template: str = CHATML, **files: Any) -> Path:
    """Copy a model folder with a chat template, more special tokens, and config files. `files`: stem -> content."""
    from transformers import PreTrainedTokenizerFast

    shutil.copytree(base, folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(base))
    tokenizer.add_special_tokens({"additional_special_tokens": [*SPECIAL_TOKENS, "<|end_of_text|>"]})
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    for stem, content in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(content))
    return folder


def _ids(folder: Path, *tokens: str) -> list[int]:
    tokenizer = ChatFormat.load(folder).tokenizer
    return sorted(tokenizer.convert_tokens_to_ids(list(tokens)))


def test_stop_ids_are_all_listed_ends(model_folder: Path, tmp_path: Path) -> None:
    """A turn ends at the template's end of turn, and at each end that tokenizer, config and generation config list."""
    folder = _folder(model_folder, tmp_path / "llama", template=LLAMA32)
    listed = _ids(folder, *LLAMA31_ENDS)
    (folder / "config.json").write_text(json.dumps({"eos_token_id": listed[0]}))
    (folder / GENERATION_CONFIG).write_text(json.dumps({"eos_token_id": listed, "do_sample": True}))
    own = ChatFormat.load(folder)
    assert own.stop_ids == sorted({*listed, own.tokenizer.eos_token_id})
    for stop in own.stop_ids:
        assert own.model_text([*own.encode("a"), stop]) == "a"


@pytest.mark.parametrize("listed", [None, [], 2, [2, 1]])
def test_stop_ids_of_one_end_or_none(model_folder: Path, tmp_path: Path, listed: Any) -> None:
    """eos_token_id may be null, a token or a list; without config files only template and tokenizer count."""
    folder = _folder(
        model_folder, tmp_path / "m", config={"eos_token_id": None}, generation_config={"eos_token_id": listed}
    )
    expected = {2, *(listed if isinstance(listed, list) else [] if listed is None else [listed])}
    assert ChatFormat.load(folder).stop_ids == sorted(expected)
    (folder / "config.json").unlink()
    (folder / GENERATION_CONFIG).unlink()
    assert ChatFormat.load(folder).stop_ids == [2]


@pytest.mark.parametrize("listed", [[2, 10**6], -1, "</s>", True, [[2]]])
def test_stop_ids_outside_the_vocabulary_are_refused(model_folder: Path, tmp_path: Path, listed: Any) -> None:
    """An end that the tokenizer cannot write is refused by file and field."""
    folder = _folder(model_folder, tmp_path / "m", generation_config={"eos_token_id": listed})
    with pytest.raises(ChatFormatError, match=r"generation_config\.json: eos_token_id .* is no token"):
        ChatFormat.load(folder)


@pytest.mark.parametrize("config", [None, {"eos_token_id": 1, "temperature": 0.6}])
def test_copy_companions_lists_the_ends_of_turns(tmp_path: Path, config: dict[str, Any] | None) -> None:
    """A final model lists its ends of turns, so that other programs stop at them; other settings stay."""
    source, target = tmp_path / "base", tmp_path / "model"
    source.mkdir()
    target.mkdir()
    (source / "config.json").write_text("{}")
    (source / "model.safetensors").write_bytes(b"x")
    if config is not None:
        (source / GENERATION_CONFIG).write_text(json.dumps(config))
    copy_companions(source, target, [2, 5])
    assert json.loads((target / GENERATION_CONFIG).read_text()) == {**(config or {}), "eos_token_id": [2, 5]}
    assert {path.name for path in target.iterdir()} == {"config.json", GENERATION_CONFIG}


def test_copy_companions_keeps_named_templates(tmp_path: Path) -> None:
    """Transformers takes the template `tool_use`, if there is one, for prompts with tools."""
    source, target = tmp_path / "base", tmp_path / "model"
    (source / "additional_chat_templates").mkdir(parents=True)
    target.mkdir()
    (source / "additional_chat_templates" / "tool_use.jinja").write_text("x")
    copy_companions(source, target)
    assert (target / "additional_chat_templates" / "tool_use.jinja").read_text() == "x"


def test_copy_companions_writes_the_dtype_of_the_weights(tmp_path: Path) -> None:
    """A version for the engines may have another number format than its source: its config.json names it."""
    source, target = tmp_path / "base", tmp_path / "version"
    source.mkdir()
    target.mkdir()
    (source / "config.json").write_text('{"torch_dtype": "bfloat16", "vocab_size": 9}')
    copy_companions(source, target, dtype="float32")
    assert json.loads((target / "config.json").read_text()) == {"dtype": "float32", "vocab_size": 9}


def test_date_in_prompts_is_that_of_the_first_attempt(model_folder: Path, tmp_path: Path) -> None:
    """A template with the current date has the same prompts on another day, also in another process."""
    folder = _folder(model_folder, tmp_path / "llama", template=LLAMA32)
    day, later = datetime.date(2026, 2, 3), datetime.date(2026, 2, 4)
    own = ChatFormat.load(folder, date=day)
    assert own.template.uses_date and "Today Date: 03 Feb 2026" in own.decode(own.prompt_ids("x"))
    assert "Today Date: 03 Feb 2026" in own.decode(own.encode_demonstration(
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]).token_ids)  # fmt: skip
    assert pickle.loads(pickle.dumps(own)).prompt_ids("x") == own.prompt_ids("x")
    assert own.fingerprint() == ChatFormat.load(folder, date=day).fingerprint()
    assert own.fingerprint() != ChatFormat.load(folder, date=later).fingerprint()
    plain = _folder(model_folder, tmp_path / "plain")
    assert ChatFormat.load(plain, date=day).fingerprint() == ChatFormat.load(plain, date=later).fingerprint()


def test_chat_date_is_stored_by_the_first_attempt(tmp_path: Path) -> None:
    """The first attempt of a job stores its date; later attempts read it."""
    state = JobState(tmp_path)
    first = chat_date(state)
    assert abs(datetime.datetime.now(datetime.UTC).date() - first) <= datetime.timedelta(1)
    state.chat_date_file.write_text("2026-02-03\n")
    assert chat_date(state) == datetime.date(2026, 2, 3)
