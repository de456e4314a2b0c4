"""Whether a running server can be the teacher of a job: tokenizer, vocabulary, length, log-probabilities of prompts.

    preflight of rstar2 run, prepare of a cluster, rstar2 validate --> find_teacher_errors ─┐
    each attempt of a stage with such a teacher ────────────────────────────────────────────┴─> check_teacher

The loss compares the probabilities of the same token ids. So the server states the text of each id of the tokenizer
through the route that rates the tokens, and tokenises some texts: both must be equal to those of the model's tokenizer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.objectives import Teacher
from rstar2_train.capacity.reference_model import longest_sequence, remote_teachers
from rstar2_train.inference.engine_errors import EngineRejected
from rstar2_train.inference.engine_session import EngineSession
from rstar2_train.inference.openai_client import ServedModel
from rstar2_train.inference.teacher_client import TeacherClient
from rstar2_train.rollout.template_file import ChatFormatError
from rstar2_train.rollout.tokenizer_files import embedded_tokens, load_tokenizer
from rstar2_train.utils.auth import TEACHER_TOKEN, read_secret

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_IDS = 4096
"""Ids per request."""
METASPACE = "\u2581"
"""Stands for a space in the entries of some tokenizers; a server may omit the space at the start of a text."""
UNDECODABLE = "\ufffd"
"""Text of a token that is a part of a character: servers complete it from the tokens before it."""
TEXTS = (
    "The sum of 12 and 30 is 42.\n\n    def f(x):\n\treturn x ** 2  # indented\n",
    "  two spaces, \r\n, \u00a0, 1234567890, 3.14159e-10, \\boxed{\\frac{1}{2}}, <answer>, </tool_call>",
    # One character per 61: of every script of the basic plane, and of two further planes.
    *(
        "".join(chr(code) for code in range(start, start + 0x1000, 61) if not 0xD800 <= code < 0xE000)
        for start in (0x80, 0x1000, 0x3000, 0x6000, 0x9000, 0xC000, 0xE000, 0x1F000, 0x20000)
    ),
)
"""Texts whose tokens must be equal: spaces, digits, code, and characters of several tokens."""


@dataclass(frozen=True, slots=True)
class TeacherServers:
    """The servers of one teacher: one of another operator, or the engines of spec.teacher."""

    urls: tuple[str, ...]
    token: str
    model: str | None = None
    """Name under which they serve the teacher; None: that of their only model."""
    start_seconds: float = 0.0
    """Time in which they may still start."""

    @property
    def own(self) -> bool:
        """Whether they are engines of the job, which are replaced after an edit."""
        return self.start_seconds > 0

    @classmethod
    def of_endpoint(cls, teacher: Teacher) -> TeacherServers:
        """Return the server of teacher.endpoint, with the token from the environment."""
        return cls((teacher.endpoint or "",), read_secret(TEACHER_TOKEN) or "", teacher.model)

    def connect(self, session: EngineSession) -> list[TeacherClient]:
        """Return a client per server."""
        return [TeacherClient(url, token=self.token, session=session, model=self.model) for url in self.urls]


class TeacherRejected(Exception):
    """A server cannot be the teacher. The message names the reason and the remedy."""


class TeacherTooShort(TeacherRejected):
    """A server takes only shorter sequences than those of the job."""


def find_teacher_errors(job: AgenticRLJob) -> dict[str, str]:
    """Return why servers cannot be teachers of a job whose model is a path on this machine: field -> error.

    Raises EngineUnavailable for a server that does not answer, and ImportError in the base install.
    """
    errors = {}
    for field, teacher in remote_teachers(job).items():
        if error := asyncio.run(_error(teacher, Path(job.spec.model.source), longest_sequence(job, field))):
            errors[field] = error
    return errors


async def _error(teacher: Teacher, model: Path, longest: int) -> str:
    try:
        tokenizer = await asyncio.to_thread(load_tokenizer, model)
    except ChatFormatError as error:
        return str(error)
    async with EngineSession() as session:
        try:
            [client] = TeacherServers.of_endpoint(teacher).connect(session)
            await check_teacher(client, tokenizer, vocabulary=embedded_tokens(model) or 0, longest=longest)
        except TeacherRejected as error:
            return str(error)
    return ""


async def check_length(client: TeacherClient, *, longest: int) -> ServedModel:
    """Return the teacher of a server if it takes the longest sequence. Raises TeacherTooShort, EngineRejected."""
    served = await client.served()
    if served.max_model_len < longest + 1:
        raise TeacherTooShort(
            f"{client.url}: the limit of {served.name} is {served.max_model_len:,} tokens, but a sequence of the job "
            f"may have {longest:,}, and a request has one more: raise --max-model-len of the server, or lower "
            "maxResponseTokens"
        )
    return served


async def check_teacher(
    client: TeacherClient, tokenizer: PreTrainedTokenizerBase, *, vocabulary: int, longest: int
) -> None:
    """Return if a server can rate the tokens of a model.

    `tokenizer`: that of the model. `vocabulary`: entries of its output layer. `longest`: tokens of the longest sequence
    of the job.

    Raises:
        TeacherRejected: with the reason.
        EngineUnavailable: if the server does not answer.
    """
    try:
        served = await check_length(client, longest=longest)
        count = len(tokenizer)
        for ids in _chunks(max(count, vocabulary), min(MOST_IDS, served.max_model_len - 1)):
            try:
                scores = await client.score(ids)
            except EngineRejected as error:
                known = f"the teacher must take each of the {max(count, vocabulary):,} tokens of the model"
                raise TeacherRejected(f"{error}: {known}, and return its log-probability") from error
            # The first token of a prompt has no value; it is the last one of the chunk before.
            for token, text in zip(ids[1:], scores.texts[1:], strict=True):
                if token < count and not _is_text_of(token, text, tokenizer):
                    raise TeacherRejected(_other(client.url, f"token {token}", tokenizer.decode([token]), text))
        for text in TEXTS:
            theirs = await client.tokenise(text)
            own = tokenizer.encode(text, add_special_tokens=False)
            if theirs != own:
                raise TeacherRejected(_other(client.url, f"the text {text[:20]!r}...", own[:20], theirs[:20]))
    except EngineRejected as error:
        hint = f": set {TEACHER_TOKEN}, or secretRefs.teacher in a cluster" if "returned 401" in str(error) else ""
        raise TeacherRejected(f"{error}{hint}") from error


def _chunks(count: int, size: int) -> Iterator[Sequence[int]]:
    """Yield all ids, at most `size` at a time; each chunk has first the id before it, the first one the last id."""
    step = max(1, size - 1)
    for start in range(0, count, step):
        yield [start - 1 if start else count - 1, *range(start, min(start + step, count))]


def _is_text_of(token: int, text: str | None, tokenizer: PreTrainedTokenizerBase) -> bool:
    own = str(tokenizer.decode([token]))
    if text is None or text == own or UNDECODABLE in own:
        return text is not None
    entry = str(tokenizer.convert_ids_to_tokens(token))
    return entry.startswith(METASPACE) and text.lstrip(" ") == own.lstrip(" ")


def _other(url: str, subject: str, own: object, theirs: object) -> str:
    return (
        f"{url}: {subject} is {own!r} in the tokenizer of the model and {theirs!r} at the server: use a teacher with "
        "the same tokenizer, because the loss compares the probabilities of the same tokens"
    )
