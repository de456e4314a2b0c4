r"""Renders conversations as tokens: the system prompt with the tool's signature, prompts, turns and tool responses.

Rollouts, evaluation and SFT use the same `ChatFormat`, so that a demonstration and a rollout of the same conversation
are the same token ids. Sampled ids are never tokenised again: a tool turn is tokenised alone and appended. Calls are
read by `tools/parser.py`. Imports neither torch nor transformers until a tokenizer is loaded.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rstar2_train.api.roles import ModelSource, ToolParser
from rstar2_train.data.problems import Problem
from rstar2_train.rollout.byte_decoder import ByteDecoder
from rstar2_train.rollout.chat_template import ChatTemplate
from rstar2_train.rollout.default_prompts import DEFAULT_PROMPT_PREFIX, TOOLS_MARK, default_system_prompt
from rstar2_train.rollout.template_file import ChatFormatError, own_template
from rstar2_train.rollout.tokenizer_files import (
    embedded_tokens,
    listed_stop_ids,
    load_tokenizer,
    unreadable_tokens,
    whole_text,
)
from rstar2_train.tools.toolset import Toolset, builtin_toolset

if TYPE_CHECKING:
    from tokenizers import Encoding
    from transformers import PreTrainedTokenizerBase

INLINE_TOKENS, INLINE_CHARACTERS = 4096, 4096
"""Longest input that is decoded or encoded in the event loop: less than 2 ms. A hand-over to a thread costs 0.1 ms."""


@dataclass(frozen=True, slots=True)
class EncodedConversation:
    """A whole conversation as tokens."""

    token_ids: list[int]
    mask: list[int]
    """1 for each token of an assistant turn, its end-of-turn token included; else 0."""


def tool_message(responses: Sequence[str]) -> str:
    """Return the user turn that answers a turn's calls: one `<tool_response>` block per call, in call order."""
    return "\n".join(f"<tool_response>\n{response}\n</tool_response>" for response in responses)


class ChatFormat:
    """Renders conversations as tokens with the chat template of one tokenizer."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        system_prompt: str | None = None,
        prompt_prefix: str | None = None,
        chat_template: str | None = None,
        tools: Toolset | None = None,
        date: date | None = None,
        stop_ids: Iterable[int] = (),
        parser: ToolParser | None = None,
        embedded: int | None = None,
    ) -> None:
        """`system_prompt`, `prompt_prefix`: None selects the built-in text, "" omits it.

        `tools`: the tools of the job; default: the Python tool. The built-in system prompt describes them; another one
        describes them in place of TOOLS_MARK. `date`: the current date for the template; None: today. `parser`: the
        form of calls; None: that of the template. `stop_ids`: tokens that end a turn, besides the template's end of
        turn and the tokenizer's end of sequence. `embedded`: tokens that the model can read; None: all.

        Raises ChatFormatError when the tokenizer or the template cannot be used.
        """
        self.tokenizer = tokenizer
        self._own_system_prompt = system_prompt
        self.prompt_prefix = DEFAULT_PROMPT_PREFIX if prompt_prefix is None else prompt_prefix
        self._fast = whole_text(tokenizer)
        try:
            self.template = ChatTemplate(tokenizer, chat_template, date=date, parser=parser)
        except ChatFormatError as error:
            raise ChatFormatError(f"{error}: set spec.model.chatTemplate to another template") from error
        self.tools = replace(builtin_toolset() if tools is None else tools, parser=self.template.parser)
        self.system_prompt = self._system_prompt(self.tools)
        self.end_of_turn = self.template.end_of_turn
        self.end_of_turn_id: int = tokenizer.convert_tokens_to_ids(self.end_of_turn)
        eos = tokenizer.eos_token_id
        self.stop_ids: list[int] = sorted({self.end_of_turn_id, *stop_ids} | ({eos} if isinstance(eos, int) else set()))
        self._unreadable = unreadable_tokens(tokenizer, embedded, needed=self.stop_ids)
        if self.end_of_turn_id not in self.encode(f"x{self.end_of_turn}x"):
            raise ChatFormatError(f"{self.end_of_turn!r} next to a word is no token, so no turn has an end: correct it")
        self._markers = sorted(
            {token.content for token in tokenizer.added_tokens_decoder.values()} | {"</tool_response>"},
            key=len,
            reverse=True,
        )

    @cached_property
    def longest_token(self) -> int:
        """Largest number of characters of one token; a lower bound of a text's tokens follows from its length."""
        return max(len(token) for token in self._fast.get_vocab(with_added_tokens=True))

    def fingerprint(self) -> str:
        """Return a SHA-256 of tokenizer, template, and the forms of tools and calls: with the same one, a demonstration
        has the same tokens.
        """
        forms = [self.tools.in_paper_form, self.tools.parser]
        parts = [self._fast.to_str(), self.template.text, self.tokenizer.special_tokens_map, forms]
        if self.template.uses_date:
            parts.append(self.template.date)
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()

    @classmethod
    def load(
        cls,
        folder: Path | str,
        source: ModelSource | None = None,
        *,
        tools: Toolset | None = None,
        date: date | None = None,
    ) -> ChatFormat:
        """Return the chat format of a Hugging Face model folder.

        `source`: the job's prompts and chat template (a Jinja file that replaces the folder's own); default: the
        built-in prompts and the folder's template. `tools`, `date`: as of the constructor. A turn ends at the end of
        turn of the template, and at each end of sequence of tokenizer, config.json and generation_config.json.

        Raises ChatFormatError when the tokenizer or the template cannot be used; the message names the folder.
        """
        path, file = Path(folder), source.chat_template if source else None
        tokenizer = load_tokenizer(path)
        try:
            template = Path(file).read_text(encoding="utf-8") if file else own_template(path, tokenizer.chat_template)
        except (OSError, ValueError) as error:  # ChatFormatError is a ValueError
            raise ChatFormatError(f"{folder}: the chat template cannot be used: {error}") from error
        embedded = embedded_tokens(path)
        stop_ids = listed_stop_ids(path, tokenizer, vocabulary=min(len(tokenizer), embedded or len(tokenizer)))
        try:
            return cls(
                tokenizer,
                system_prompt=source.system_prompt if source else None,
                prompt_prefix=source.prompt_prefix if source else None,
                chat_template=template,
                tools=tools,
                date=date,
                parser=source.tool_parser if source else None,
                stop_ids=stop_ids,
                embedded=embedded,
            )
        except ChatFormatError as error:
            raise ChatFormatError(f"{folder}: the tokenizer cannot be used: {error}") from error

    # -- text to tokens -------------------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without added special tokens. Other threads run meanwhile if it is long."""
        ids: list[int] = self._encoding(text).ids
        if self._unreadable and not self._unreadable.isdisjoint(ids):
            token = next(token for token in ids if token in self._unreadable)
            raise ChatFormatError(f"the text contains {self.decode([token])!r}, which the model has no embedding for")
        return ids

    def encode_turn(self, text: str) -> list[int]:
        """Return the token ids of an assistant turn without its end, as they follow the start of a generation."""
        return self._encode_after(self.end_of_turn + self.template.turn_tail, text)

    def encode_reply(self, text: str) -> list[int]:
        """Return the token ids of a text that follows an end of turn."""
        return self._encode_after(self.end_of_turn, text)

    def _encode_after(self, before: str, text: str) -> list[int]:
        """Return the token ids that a text has after another one. The two texts share no token, as in a rollout."""
        # A tokenizer may write a space before a whole text only, and a token may take the white space after it.
        head, ids = self.encode(before), self.encode(before + text)
        return ids[len(head) :] if ids[: len(head)] == head else self.encode(text)

    @cached_property
    def _byte_decoder(self) -> ByteDecoder | None:
        return ByteDecoder.from_tokenizer(self._fast)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens included."""
        if self._byte_decoder is not None:
            return self._byte_decoder.decode(token_ids)
        # Only the batch function of the tokenizer releases the interpreter lock.
        (text,) = self._fast.decode_batch([list(token_ids)], skip_special_tokens=False)
        return str(text)

    def _encoding(self, text: str) -> Encoding:
        # Only the batch functions of the tokenizer release the interpreter lock.
        if len(text) <= INLINE_CHARACTERS:
            return self._fast.encode(text, add_special_tokens=False)
        return self._fast.encode_batch([text], add_special_tokens=False)[0]

    def _system_prompt(self, tools: Toolset) -> str:
        """Return the system message of a conversation with these tools."""
        own = self._own_system_prompt
        if own is None:
            return default_system_prompt(tools)
        return own if tools.in_paper_form else own.replace(TOOLS_MARK, tools.section())

    def prompt_messages(
        self, problem: str, *, raw_prompt: bool = False, tools: Iterable[str] | None = None
    ) -> list[dict[str, str]]:
        """Return the conversation of a prompt; `raw_prompt`: without the job's system prompt and prefix.

        `tools`: names of the tools that the row allows; None: all. Raises ValueError for an unknown name.
        """
        if raw_prompt:
            return [{"role": "user", "content": problem}]
        system = self.system_prompt if tools is None else self._system_prompt(self.tools.select(tools))
        messages = [{"role": "system", "content": system}] if system else []
        return [*messages, {"role": "user", "content": self.prompt_prefix + problem}]

    def prompt_ids(self, problem: str, *, raw_prompt: bool = False, tools: Iterable[str] | None = None) -> list[int]:
        """Return the token ids up to the start of the model's first turn. Arguments as of `prompt_messages`."""
        return self._opening_ids(self.prompt_messages(problem, raw_prompt=raw_prompt, tools=tools))

    def problem_ids(self, problem: Problem) -> array[int]:
        """Return the token ids of a row's prompt, up to the start of the model's first turn."""
        if not problem.functions:
            return array("i", self.prompt_ids(problem.problem, raw_prompt=problem.raw_prompt, tools=problem.tools))
        tools, own = self.tools.select(None, problem.functions), self._own_system_prompt or ""
        system = self._system_prompt(tools) if TOOLS_MARK in own else tools.section()  # the built-in one asks for a box
        opening = [{"role": "system", "content": system}] if system else []
        return array("i", self._opening_ids([*opening, {"role": "user", "content": problem.problem}]))

    def conversation_prompt_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the token ids of an unfinished conversation, up to the start of the model's next turn.

        The last message must not be the assistant's. Otherwise as `encode_conversation`.
        """
        if any(message["role"] == "assistant" for message in messages):
            return self.encode_conversation(messages).token_ids
        return self._opening_ids(messages)

    def _opening_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return self.encode(self.template.write(self.template.render, messages))

    def tool_turn_text(self, responses: Sequence[str]) -> str:
        """Return the text between a turn's end-of-turn token and the model's next turn.

        Markers of the tokenizer in the responses are escaped: tool output cannot forge a turn.
        """
        body = tool_message([self.escape_markers(response) for response in responses])
        return self.template.turn_head + body + self.template.turn_tail

    def encode_demonstration(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[dict[str, Any]] = ()
    ) -> EncodedConversation:
        """Return a demonstration as the tokens that a rollout of it would have: the only tokens to train on.

        `tools`: signatures that the row declares. They follow its system message as those of the job follow that of a
        rollout.

        Raises ChatFormatError, which names the message, for a conversation that no rollout could have sampled, and for
        a field or a message that the template does not write.
        """
        section = self.tools.section(tools) if tools else ""
        return self._encode(self.template.without_empty_fields(messages), section=section, is_demonstration=True)

    def encode_conversation(self, messages: Sequence[Mapping[str, Any]]) -> EncodedConversation:
        """Return a finished conversation `[{role, content}, ...]` as the tokens that a rollout of it would have.

        Consecutive messages of role `tool` share one user turn, as in a rollout. Raises ChatFormatError for a
        conversation without an assistant turn, or with an assistant turn first, and for a message that the template
        does not write.
        """
        return self._encode(messages, is_demonstration=False)

    def _encode(
        self, messages: Sequence[Mapping[str, Any]], *, section: str = "", is_demonstration: bool
    ) -> EncodedConversation:
        opening, turns = self._split_turns(messages)
        if section:
            has_system = opening[0]["role"] == "system"
            system = str(opening[0]["content"]).strip() if has_system else ""
            content = f"{system}\n\n{section}" if system else section
            opening = [{"role": "system", "content": content}, *opening[has_system:]]
        ids = self._opening_ids(opening)
        mask = [0] * len(ids)
        places = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
        for at, (message, reply) in zip(places, turns, strict=True):
            try:
                written = self._turn_ids(message, messages[at + 1 :] if is_demonstration else None)
            except ChatFormatError as error:
                raise ChatFormatError(f"messages[{at}]: {error}") from error
            ids += written
            mask += [int(message.get("weight", 1))] * len(written)
            between = self._reply_ids(reply)
            ids += between
            mask += [0] * len(between)
        return EncodedConversation(ids, mask)

    def _turn_ids(self, message: Mapping[str, Any], demonstrated: Sequence[Mapping[str, Any]] | None) -> list[int]:
        """Return the token ids of an assistant turn with its end.

        `demonstrated`: the messages after the turn of a demonstration, which is checked; None: it is none.
        """
        text = self.template.model_turn(message)
        ids = self.encode_turn(text)
        if demonstrated is not None:
            self.template.check_turn(text, demonstrated, is_trained=bool(message.get("weight", 1)))
            stop = next((token for token in ids if token in self.stop_ids), None)
            if stop is not None:
                raise ChatFormatError(f"the text contains {self.decode([stop])!r}, which ends a turn: remove it")
        return [*ids, self.end_of_turn_id]

    def continuation_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the token ids after an assistant turn and its end-of-turn token, up to the model's next turn.

        `messages`: those after the turn; the last one must not be the assistant's. They may have further assistant
        turns. Raises ChatFormatError for messages that the template cannot render.
        """
        before = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
        _, ((_, reply), *turns) = self._split_turns([*before, *messages])
        ids = self._reply_ids(reply)
        for message, later_reply in turns:
            ids += [*self._turn_ids(message, None), *self._reply_ids(later_reply)]
        return ids

    def _reply_ids(self, reply: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the token ids of the messages between two assistant turns, without the first turn's end."""
        if not reply:
            return []
        return self.encode_reply(self.template.write(self.template.after_model_turn, reply)[len(self.end_of_turn) :])

    def _split_turns(
        self, messages: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Mapping[str, Any]], list[tuple[Mapping[str, Any], list[dict[str, str]]]]]:
        """Return the messages before the first assistant turn, and each assistant turn with the messages after it."""
        first = next((at for at, message in enumerate(messages) if message["role"] == "assistant"), None)
        if not first:
            raise ChatFormatError("a conversation must have an assistant turn, and must not start with one")
        turns: list[tuple[Mapping[str, Any], list[dict[str, str]]]] = []
        results: list[str] = []
        for at in range(first, len(messages)):
            role, content = str(messages[at]["role"]), str(messages[at]["content"])
            if role == "assistant":
                turns.append((messages[at], []))
                continue
            if role == "tool":
                results.append(self.escape_markers(content))
                if at + 1 < len(messages) and messages[at + 1]["role"] == "tool":
                    continue
                role, content, results = "user", tool_message(results), []
            turns[-1][1].append({"role": role, "content": content})
        return list(messages[:first]), turns

    def model_text(self, token_ids: Sequence[int]) -> str:
        """Return the text of a sampled turn, without its stop token."""
        ids = token_ids[:-1] if token_ids and token_ids[-1] in self.stop_ids else token_ids
        return self.decode(ids)

    def escape_markers(self, text: str) -> str:
        """Return tool output with a space inserted into every marker of the tokenizer, so that none can end a turn."""
        if "<" not in text and "[" not in text:
            return text
        for marker in self._markers:
            if len(marker) > 1 and marker in text:
                text = text.replace(marker, f"{marker[0]} {marker[1:]}")
        return text

    def cut_middle(self, text: str, *, limit: int) -> str:
        """Return tool output with at most `limit` tokens; a note with the omitted length replaces the middle.

        The tokens of the note are not counted. The tokens are those of the escaped text, which the model receives. A
        character of several tokens is kept whole or not at all.
        """
        escaped = self.escape_markers(text)
        if len(escaped.encode()) <= limit:
            return text
        head, tail = limit - limit // 2, limit // 2
        window = 3 * limit  # six characters per token of head or tail: most texts have fewer
        while 2 * window < len(escaped):
            first = self._encoding(escaped[:window]).offsets
            last = self._encoding(escaped[-window:]).offsets
            if len(first) > head and len(last) > tail:
                shift = len(escaped) - window
                return _without_middle(escaped, first[head][0], shift + last[-tail - 1][1])
            window *= 4
        offsets = self._encoding(escaped).offsets
        if len(offsets) <= limit:
            return text
        return _without_middle(escaped, offsets[head][0], offsets[-tail - 1][1])


def _without_middle(text: str, head_end: int, tail_start: int) -> str:
    """Return `text[:head_end]` and `text[tail_start:]` with a note on the omitted characters between them."""
    return f"{text[:head_end]}\n...({tail_start - head_end} characters left out)...\n{text[tail_start:]}"
