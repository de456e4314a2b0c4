"""Properties of all rows: any row is read or refused, and accepted conversations are trained token for token."""

from __future__ import annotations

import contextlib
import json
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rstar2_train.data.demonstrations import Demonstration, empty_fields, read_demonstrations
from rstar2_train.data.prepare.config import PrepareSettings
from rstar2_train.data.prepare.layouts import LAYOUTS
from rstar2_train.data.prepare.pipeline import DatasetSource, convert_row, identify_row, prepare
from rstar2_train.data.problems import read_problems
from rstar2_train.data.readers import DataError
from rstar2_train.orchestrator.token_cache import load_tokens
from rstar2_train.rollout.chat_format import ChatFormat, ChatFormatError
from rstar2_train.rollout.template_check import check_demonstrations
from tests.support.chat_templates import CHATML, QWEN3, QWEN35
from tests.support.model_fixtures import chat_format, model_folder

__all__ = ["chat_format", "model_folder"]

QUICK = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
)
TEXTS = st.text(string.ascii_letters + " \n<>|é\U0001f600\x0c", max_size=12)
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
)
FIELDS = ("id", "problem", "answer", "slice", "hard", "tools", "reward", "files", "data", "functions", "instructions")
EMPTY: tuple[Any, ...] = (None, "", [], {})
READ_FIELDS = ("role", "content", "weight", "reasoning_content", "tool_calls", "tool_call_id", "name")
ARGUMENTS = st.dictionaries(
    st.sampled_from("ab"), st.integers() | TEXTS | st.lists(st.integers(), max_size=2), max_size=2
)


@st.composite
def messages(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw the messages of a conversation, most of them valid, with fields that some messages must not have."""
    extra = st.dictionaries(
        st.sampled_from(["name", "weight", "reasoning_content", "function_call", "tool_call_id", "audio"]),
        st.none() | st.integers(0, 1) | TEXTS,
        max_size=1,
    )
    calls = st.lists(
        st.builds(lambda name, given: {"type": "function", "function": {"name": name, "arguments": given}},
                  st.sampled_from(["f", "g"]), ARGUMENTS | ARGUMENTS.map(json.dumps)),
        max_size=2,
    )  # fmt: skip
    drawn: list[dict[str, Any]] = [{"role": "system", "content": draw(TEXTS)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        drawn.append({"role": "user", "content": draw(TEXTS)})
        turn: dict[str, Any] = {"role": "assistant", "content": draw(TEXTS | st.none())} | draw(st.just({}) | extra)
        if written := draw(calls):
            turn["tool_calls"] = written
        drawn.append(turn)
        drawn += [{"role": "tool", "content": draw(TEXTS)} for _ in written]
        if written and draw(st.booleans()):
            drawn.append({"role": "assistant", "content": draw(TEXTS)})
    return drawn


def _write(folder: Path, *rows: object) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _read(path: Path) -> list[Demonstration]:
    try:
        return list(read_demonstrations(path))
    except DataError as error:
        assert str(error).startswith(f"{path}:1: ")
        return []


@QUICK
@given(row=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6))
def test_read_problems_of_any_row_returns_or_refuses(tmp_path: Path, row: dict[str, Any]) -> None:
    """Any row is a problem, which reads back as itself, or an error with its line."""
    path = _write(tmp_path, row)
    try:
        (problem,) = read_problems(path)
    except DataError as error:
        assert str(error).startswith(f"{path}:1: ")
        return
    assert list(read_problems(_write(tmp_path, problem.to_row()))) == [problem]


@settings(QUICK, max_examples=120)
@given(name=st.sampled_from(sorted(LAYOUTS)), data=st.data())
def test_convert_row_of_any_row_returns_or_refuses(name: str, data: st.DataObject) -> None:
    """Any row of any layout is converted, removed by a rule, or an error with its line."""
    layout = LAYOUTS[name]
    turn = st.fixed_dictionaries({}, optional={key: VALUES for key in ("from", "value", "role", "content")})
    row = data.draw(st.dictionaries(st.sampled_from([*layout.columns, "x"]), VALUES | st.lists(turn, max_size=2)))
    try:
        identify_row(convert_row(layout, row, "data.jsonl:1", max_digits=PrepareSettings().max_digits))
    except DataError as error:
        assert str(error).startswith("data.jsonl:1: ")


@QUICK
@given(drawn=messages())
def test_prepared_conversations_are_trained_whole(
    tmp_path_factory: pytest.TempPathFactory, chat_format: ChatFormat, drawn: list[dict[str, Any]]
) -> None:
    """A conversation that `prepare` accepts is accepted by the reader of a stage and tokenised; every text of it is in
    the tokens, and exactly the assistants' texts are trained.
    """
    folder = tmp_path_factory.mktemp("row")
    path = _write(folder, {"messages": drawn})
    try:
        prepared = prepare([DatasetSource(LAYOUTS["conversations"], (path,))], out=folder / "out").file
    except DataError:
        return
    (row,) = _read(prepared)
    assert all(set(message) - set(empty_fields(message)) <= {"role", "content", "weight"} for message in row.messages)
    for template in (CHATML, QWEN3):
        own = ChatFormat(chat_format.tokenizer, system_prompt="", prompt_prefix="", chat_template=template)
        assert _trained(own, row) == _expected(own, row)
    text = own.decode(own.encode_demonstration(row.messages).token_ids)
    for message in drawn[: 1 + max(at for at, each in enumerate(drawn) if each["role"] == "assistant")]:
        content = message["content"] or ""
        assert (own.escape_markers(content) if message["role"] == "tool" else content).strip() in text
        for call in message.get("tool_calls", ()):
            assert f'"name": "{call["function"]["name"]}"' in text


@QUICK
@given(drawn=messages())
def test_read_conversations_are_trained_whole(
    tmp_path: Path, chat_format: ChatFormat, drawn: list[dict[str, Any]]
) -> None:
    """A conversation that a stage reads is tokenised with all calls and reasoning, or was refused: no field is lost."""
    given_fields = {key for message in drawn for key, value in message.items() if value not in EMPTY}
    rows = _read(_write(tmp_path, {"messages": drawn}))
    if given_fields & {"function_call", "audio", "name", "tool_call_id"}:
        assert not rows
    own = ChatFormat(chat_format.tokenizer, system_prompt="", prompt_prefix="", chat_template=QWEN3)
    for row in rows:
        trained = "".join(_trained(own, row))
        for message in row.messages:
            if message["role"] == "assistant" and "weight" not in message:
                assert message["content"].strip() in trained
                assert message.get("reasoning_content", "").strip() in trained
                for call in message.get("tool_calls", ()):
                    assert json.dumps(call["function"]["arguments"], ensure_ascii=False) in trained


@QUICK
@given(rows=st.lists(messages(), min_size=1, max_size=3), template=st.sampled_from([CHATML, QWEN3, QWEN35]))
def test_validate_accepts_what_the_stage_trains(
    tmp_path_factory: pytest.TempPathFactory, chat_format: ChatFormat, rows: list[list[dict[str, Any]]], template: str
) -> None:
    """A file that `rstar2 validate` accepts is trained, each token of it, and one that it refuses is not; so is a file
    that `rstar2 data prepare` wrote.
    """
    folder = tmp_path_factory.mktemp("rows")
    own = ChatFormat(chat_format.tokenizer, system_prompt="", prompt_prefix="", chat_template=template)
    files = [_write(folder, *({"messages": drawn} for drawn in rows))]
    with contextlib.suppress(DataError):
        files.append(prepare([DatasetSource(LAYOUTS["conversations"], (files[0],))], out=folder / "out").file)
    for file in files:
        try:
            check_demonstrations(file, own)
        except (DataError, ChatFormatError) as error:
            assert str(error).startswith(f"{file}:")
            with pytest.raises(DataError):
                load_tokens(folder / "tokens", file, own)
            continue
        cache = load_tokens(folder / "tokens", file, own)
        read = list(read_demonstrations(file))
        assert len(cache.ends) == len(read)
        for index, row in enumerate(read):
            encoded, stored = own.encode_demonstration(row.messages), cache.example(index)
            assert stored.ids.tolist() == encoded.token_ids and stored.mask.tolist() == list(map(bool, encoded.mask))


@QUICK
@given(
    drawn=messages(),
    name=st.text(string.ascii_lowercase + "_", min_size=1, max_size=12).filter(lambda name: name not in READ_FIELDS),
    value=VALUES.filter(lambda value: value not in EMPTY),
    data=st.data(),
)
def test_unknown_field_of_a_message_is_always_refused(
    tmp_path: Path, drawn: list[dict[str, Any]], name: str, value: Any, data: st.DataObject
) -> None:
    """No field of a message of any role is dropped, for any name and value."""
    data.draw(st.sampled_from(drawn))[name] = value
    with pytest.raises(DataError, match=r"data\.jsonl:1: "):
        list(read_demonstrations(_write(tmp_path, {"messages": drawn})))
    with pytest.raises(DataError):
        prepare([DatasetSource(LAYOUTS["conversations"], (tmp_path / "data.jsonl",))], out=tmp_path / "out")


def _trained(own: ChatFormat, row: Demonstration) -> list[str]:
    """Return the trained texts of a demonstration, each up to the end of its turn."""
    encoded = own.encode_demonstration(row.messages)
    texts, tokens = [], list[int]()
    for token, bit in zip(encoded.token_ids, encoded.mask, strict=True):
        tokens += [token] if bit else []
        if bit and token == own.end_of_turn_id:
            texts.append(own.decode(tokens[:-1]))
            tokens = []
    assert not tokens
    return texts


def _expected(own: ChatFormat, row: Demonstration) -> list[str]:
    return [
        message["content"] for message in row.messages if message["role"] == "assistant" and "weight" not in message
    ]
