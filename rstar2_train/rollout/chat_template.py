"""Renders messages as text by the chat template of a model.

`ChatFormat` turns the text into tokens. The end of a turn, the text between turns and the start of a generation are
derived from renderings with marks, so that any template is followed to the character.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from rstar2_train.api.roles import ToolParser
from rstar2_train.data.demonstrations import empty_fields
from rstar2_train.rollout.template_file import ChatFormatError, default_template
from rstar2_train.rollout.template_repeat import check_addresses, check_random
from rstar2_train.tools.call_form import FORMS, parser_of_template
from rstar2_train.tools.parser import INVALID_CALL, first_fault, write_calls, written_calls
from rstar2_train.tools.schema import CALL_OPEN

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MODEL_MARK = "QZMODELTURNZQ"
USER_MARK = "QZUSERTURNZQ"
_SYSTEM_MARK = "QZSYSTEMZQ"
_PLACE_MARK = "QZPLACE{}ZQ"
_OPENED = re.compile(r"<([a-z_]+)>(\s*)\Z")
_THINK, _THINK_END = "<think>", "</think>"
_SPACES = re.compile(r"</?think>|\s")
_MARKS: Mapping[ToolParser, re.Pattern[str]] = {
    "hermes": re.compile(re.escape(CALL_OPEN)),
    "mistral": re.compile(r"\[TOOL_CALLS\]"),
    "gemma": re.compile(r"(?:`{3,}|~{3,})[ \t]*tool_code\b"),
}
"""Form of calls -> text that no other form has, also where it is no call that rollouts read."""
_LATER_TURNS = (2, 3, 6)
"""Numbers of turns after which a template must write the same as after the first one."""
_DATE = "strftime_now"
"""Function of chat templates that returns the current date."""


class ChatTemplate:
    """The chat template of one tokenizer.

    It must write an assistant's content verbatim, and close it with a special token. A template that does not write
    the start of a generation is completed; one without a system role gets the system message in the user's first one.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template: str | None,
        *,
        date: datetime.date | None = None,
        parser: ToolParser | None = None,
    ) -> None:
        """`template`: None selects the tokenizer's. `date`: the current date for the template; None: today.

        `parser`: the form of calls; None: that of the template.
        Raises ChatFormatError for a template that cannot be used.
        """
        self._tokenizer, self._template, self._date = tokenizer, template, date
        check_random(self.text)
        self.parser: ToolParser = parser or parser_of_template(self.text)
        self._has_system, self._start = True, ""
        after_model = self.after_model_turn([{"role": "user", "content": USER_MARK}])
        self.end_of_turn = self._closing_token(after_model)
        head, mark, tail = after_model[len(self.end_of_turn) :].partition(USER_MARK)
        if not mark:
            raise ChatFormatError("the chat template drops a user turn that follows an assistant turn")
        for number in _LATER_TURNS:
            if (later := self._after_later_turn(number)) != after_model:
                raise ChatFormatError(
                    f"the chat template writes {after_model!r} after assistant turn 1 and {later!r} after turn "
                    f"{number}, but a rollout has the same text between all its turns"
                )
        self._start = self._missing_start()
        self.turn_head, self.turn_tail = head, tail + self._start
        """Text around a user turn that follows an assistant turn, up to the model's next turn."""
        self._has_system = self._renders_system()
        if self._header:
            raise ChatFormatError(
                f"the chat template writes {self._header!r} between the start of a turn and its content, so a turn has "
                "parts of its own, which rollouts do not read"
            )

    @property
    def text(self) -> str:
        """The template itself."""
        return str(self._template or default_template(self._tokenizer.chat_template))

    @property
    def uses_date(self) -> bool:
        """Whether a prompt contains the current date."""
        return _DATE in self.text

    @property
    def date(self) -> str:
        """The date in prompts, as YYYY-MM-DD."""
        return f"{self._date or datetime.date.today():%Y-%m-%d}"

    @cached_property
    def _opened(self) -> tuple[str, str]:
        """The tag that the start of a generation opens, such as `<think>`, and the white space after it."""
        match = _OPENED.search(self.render([{"role": "user", "content": USER_MARK}]).rpartition(USER_MARK)[2])
        return (f"<{match.group(1)}>", match.group(2)) if match else ("", "")

    @cached_property
    def _between(self) -> str:
        """The text between the start of a generation and a content, such as a line break."""
        return self._before_content(self.render([{"role": "user", "content": USER_MARK}]))

    @property
    def _header(self) -> str:
        """That text if it has added tokens other than tags of reasoning."""
        tokens = self._added_tokens() - {_THINK, _THINK_END}
        return self._between if any(token in self._between for token in tokens) else ""

    @property
    def _lead(self) -> str:
        """That text if the model samples it before each content; no part of a reasoning is."""
        return "" if self._opened[0] or _THINK_END in self._between else self._between

    def _added_tokens(self) -> set[str]:
        """Return the added tokens of the tokenizer, also those that its config does not list, such as `<|channel|>`."""
        return {token.content for token in self._tokenizer.added_tokens_decoder.values()}

    @cached_property
    def _has_closed_reasoning(self) -> bool:
        """Whether the start of a generation is an empty reasoning."""
        return self.render([{"role": "user", "content": USER_MARK}]).rstrip().endswith(_THINK_END)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the text of a conversation up to the model's next turn. Raises ChatFormatError."""
        return self._apply(messages, start=True) + self._start

    def after_model_turn(self, reply: Sequence[Mapping[str, Any]], *, before: Sequence[Mapping[str, Any]] = ()) -> str:
        """Return the template's text from the end of an assistant turn, through `reply`, to the next generation.

        `before`: the turns before its question.
        """
        opening = [*before, {"role": "user", "content": "x"}, {"role": "assistant", "content": MODEL_MARK}]
        _, mark, after = self.render([*opening, *reply]).partition(MODEL_MARK)
        if not mark:
            raise ChatFormatError("the chat template does not write an assistant's content verbatim")
        return after

    def is_rewriting(self) -> bool:
        """Return whether the template writes a message otherwise if others follow, apart from reasoning and spaces."""
        opening = [{"role": "system", "content": _SYSTEM_MARK}, {"role": "user", "content": USER_MARK}]
        later = [{"role": "assistant", "content": MODEL_MARK}, {"role": "user", "content": USER_MARK}]
        appended = self.render(opening) + 2 * (MODEL_MARK + self.after_model_turn(later[1:]))
        return _SPACES.sub("", appended) != _SPACES.sub("", self.render([*opening, *later, *later]))

    def write(self, render: Callable[[Sequence[Mapping[str, Any]]], str], messages: Sequence[Mapping[str, Any]]) -> str:
        """Return `render(messages)`. Raises ChatFormatError unless it has each message's content, in their order.

        `render`: a rendering of this template. White space around a content may be missing.
        """
        # A content may also be a part of another message, so that its own place is found by a mark.
        marked = [{**message, "content": _with_mark(message["content"], at)} for at, message in enumerate(messages)]
        _check_contents(render(marked), marked)
        text = render(messages)
        _check_contents(text, messages)
        return text

    def model_turn(self, message: Mapping[str, Any]) -> str:
        """Return the text of an assistant turn as the model would sample it: without its start and its end.

        A tag that the start of a generation opens, such as `<think>`, is not repeated. Raises ChatFormatError.
        """
        content = str(message["content"])
        if message.get("tool_calls") or message.get("reasoning_content"):
            content = self._written_fields(message)
        tag, space = self._opened
        if tag and content.lstrip().startswith(tag):
            content = content.lstrip().removeprefix(tag).removeprefix(space)
        return content if content.startswith(self._lead) else self._lead + content

    def without_empty_fields(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return messages without their empty fields. Raises ChatFormatError if one has another text without them."""
        return [self._bare(message, at) for at, message in enumerate(messages)]

    def _bare(self, message: Mapping[str, Any], at: int) -> Mapping[str, Any]:
        fields = empty_fields(message)
        if not fields:
            return message
        bare = {key: value for key, value in message.items() if key not in fields}
        text = self._in_place(bare)
        with contextlib.suppress(ChatFormatError):
            if self._in_place(message) == text:
                return bare
        raise ChatFormatError(
            f"messages[{at}]: the chat template writes another text with the empty fields {', '.join(fields)}: remove "
            "them"
        )

    def _in_place(self, message: Mapping[str, Any]) -> str:
        """Return the text of a short conversation with a message at the place of its role."""
        question = [{"role": "user", "content": "x"}]
        before, after = (question if message["role"] == role else [] for role in ("assistant", "system"))
        return self._apply([*before, message, *after], start=False)

    def check_turn(self, turn: str, later: Sequence[Mapping[str, Any]], *, is_trained: bool) -> None:
        """Raise ChatFormatError for a turn of a demonstration that no rollout has. `later`: the messages after it."""
        self._check_reasoning(turn)
        results = takewhile(lambda message: message["role"] == "tool", later)
        self._check_form(turn, [str(result["content"]) for result in results], is_trained=is_trained)

    def _check_reasoning(self, turn: str) -> None:
        """Raise ChatFormatError for a turn whose reasoning does not fit the start of a generation."""
        opened = self._opened[0]
        closed = opened.replace("<", "</")
        if opened and (turn.count(closed) != 1 or opened in turn):
            remedy = "set reasoning_content, or start" if opened == _THINK else "start"
            raise ChatFormatError(
                f"the chat template opens {opened}, so an assistant message must close it exactly once: {remedy} the "
                f"content with {opened}...{closed}"
            )
        if self._has_closed_reasoning and (tag := next((tag for tag in (_THINK, _THINK_END) if tag in turn), "")):
            raise ChatFormatError(
                f"the chat template starts a turn with an empty reasoning, so an assistant message cannot have {tag}"
            )

    def _written_fields(self, message: Mapping[str, Any]) -> str:
        """Return a turn with calls or reasoning as the template writes it; calls that it ignores, as rollouts have."""
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
        text = self._alone(message)
        ignores_calls = bool(calls) and text == self._alone(
            {key: message[key] for key in message if key != "tool_calls"}
        )
        if ignores_calls:
            before = text if message.get("reasoning_content") else str(message["content"])
            text = "\n".join(part for part in (before, self._written_calls(calls)) if part)
        if calls and written_calls(text, self.parser) != calls:
            raise ChatFormatError(
                "the chat template writes tool_calls in a form that rollouts do not read: write the calls in the "
                "content (`rstar2 data prepare` does)"
            )
        for field in ("reasoning_content", "content"):
            is_own = field == "content" and ignores_calls  # written here, not by the template
            if str(message.get(field, "")).strip() not in text or not (is_own or self._writes(message, field)):
                raise ChatFormatError(
                    f"the chat template does not write {field}: write it in the content, as the model writes it"
                )
        return text

    def _writes(self, message: Mapping[str, Any], field: str) -> bool:
        """Return whether the template writes a field of a message; its text may also be a part of another field."""
        given = str(message.get(field, ""))
        marked = _with_mark(given, 0)
        return not given.strip() or marked.strip() in self._alone({**message, field: marked})

    def _written_calls(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
        try:
            return write_calls(calls, self.parser)
        except ValueError as error:
            raise ChatFormatError(f"tool_calls cannot be written in the form {self.parser}: {error}") from error

    def _check_form(self, turn: str, results: Sequence[str], *, is_trained: bool) -> None:
        """Raise ChatFormatError for a turn with a call in another form than rollouts read.

        `is_trained`: also for a malformed call whose result is not the error that rollouts have for it.
        """
        if is_trained and (fault := first_fault(turn, self.parser, results)):
            raise ChatFormatError(
                f"the content has a call of the form {self.parser} that rollouts cannot read: {fault}; correct it, "
                "set spec.model.toolParser to another form if it is no call, or write weight: 0 for the message. "
                f"To show the model its error, let the result start with {INVALID_CALL!r}, as in rollouts"
            )
        for parser, mark in _MARKS.items():
            marks = mark.findall(turn)
            if marks and parser != self.parser:
                raise ChatFormatError(
                    f"the content has {marks[0]}, but rollouts of this model read calls of the form {self.parser}: "
                    f"write tool_calls, or set spec.model.toolParser to {parser}"
                )
            if marks and parser in FORMS and len(marks) > len(FORMS[parser].start.findall(turn)):
                raise ChatFormatError(
                    f"the content has {' and '.join(marks)}, and rollouts do not read each of them as the start of a "
                    f"call of the form {parser}: write tool_calls"
                )

    def _alone(self, message: Mapping[str, Any]) -> str:
        """Return the text of an assistant message after a question, without its start and its end."""
        question = [{"role": "user", "content": "x"}]
        whole, start = self._apply([*question, message], start=False), self.render(question)
        if not whole.startswith(start):  # a start that opens a tag, before a turn without it
            start = start.rstrip().removesuffix(self._opened[0])
        text, end, rest = whole.removeprefix(start).rpartition(self.end_of_turn)
        if not whole.startswith(start) or not end or rest.strip():
            raise ChatFormatError(
                "the chat template writes a message with tool_calls or reasoning_content in a form that no turn has: "
                "write them in the content"
            )
        return text

    def _apply(self, messages: Sequence[Mapping[str, Any]], *, start: bool) -> str:
        given = [dict(message) for message in messages]
        if not self._has_system:
            given = _without_system(given)
        # A date, not a time: prompts of the same day are equal.
        options: dict[str, Any] = {_DATE: (self._date or datetime.date.today()).strftime}
        try:
            rendered = self._tokenizer.apply_chat_template(
                given, tokenize=False, add_generation_prompt=start, chat_template=self._template, **options
            )
        except Exception as error:  # a template calls methods of texts and lists, which raise errors of any kind
            roles = [message["role"] for message in messages]
            raise ChatFormatError(
                f"the chat template cannot render a conversation of roles {roles}: {error}"
            ) from error
        check_addresses(str(rendered), messages)
        return str(rendered)

    def _after_later_turn(self, number: int) -> str:
        """Return the text after the assistant turn of a number, from 2 on: some templates count the turns."""
        before = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}] * (number - 1)
        return self.after_model_turn([{"role": "user", "content": USER_MARK}], before=before)

    def _missing_start(self) -> str:
        """Return the text before an assistant's content if the template ignores add_generation_prompt; else "".

        Without spaces at its end, which the model samples with its first word.
        """
        question = [{"role": "user", "content": USER_MARK}]
        prompt = self._apply(question, start=True)
        if prompt != self._apply(question, start=False):
            return ""
        return self._before_content(prompt).rstrip(" ")

    def _before_content(self, prompt: str) -> str:
        """Return the text between a prompt with USER_MARK and an assistant's content; "" if it starts otherwise."""
        turn = self._apply(
            [{"role": "user", "content": USER_MARK}, {"role": "assistant", "content": MODEL_MARK}], start=False
        )
        return turn.partition(MODEL_MARK)[0].removeprefix(prompt) if turn.startswith(prompt) else ""

    def _renders_system(self) -> bool:
        messages = [{"role": "system", "content": _SYSTEM_MARK}, {"role": "user", "content": USER_MARK}]
        try:
            return _SYSTEM_MARK in self._apply(messages, start=True)
        except ChatFormatError:
            self._has_system = False
            self._apply(messages, start=True)  # raises if another part of the template is at fault
            return False

    def _closing_token(self, after: str) -> str:
        closing = max((token for token in self._added_tokens() if after.startswith(token)), key=len, default="")
        if not closing:
            raise ChatFormatError(
                f"the chat template closes an assistant turn with {after[:20]!r}, which is not a special token: the "
                "end of a turn could not be sampled"
            )
        return closing


def _without_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages whose first ones, of role system, are the start of the first user message."""
    first = next((at for at, message in enumerate(messages) if message["role"] != "system"), 0)
    if not first or messages[first]["role"] != "user":
        return messages
    content = "\n\n".join(str(message["content"]) for message in messages[: first + 1])
    return [{**messages[first], "content": content}, *messages[first + 1 :]]


def _with_mark(content: str, at: int) -> str:
    """Return a message's content with the mark of its place in the middle of its text."""
    middle = len(content) - len(content.lstrip()) + len(content.strip()) // 2
    return content[:middle] + _PLACE_MARK.format(at) + content[middle:] if content.strip() else content


def _check_contents(text: str, messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise ChatFormatError unless a rendering has each message's content, one after another."""
    end = 0
    for at, message in enumerate(messages):
        content = message["content"].strip()
        start = text.find(content, end)
        if start < 0:
            given = reprlib.repr(content.replace(_PLACE_MARK.format(at), ""))
            raise ChatFormatError(
                f"the chat template does not write the content of a {message['role']} message here: {given}; move it, "
                "or join it with another message"
            )
        end = start + len(content)
