"""The library that carries a group's broadcasts: NCCL or RCCL if all members can use it, else gloo. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

GLOO = "gloo"


@dataclass(frozen=True, slots=True)
class GroupMember:
    """The library and the GPU of a member of a group."""

    library: str
    """Name and version; empty if the member cannot use one."""
    device: str
    """Identity of its GPU."""
    reason: str = ""
    """Why it cannot use a library."""

    def to_json(self) -> str:
        """Return the member as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> GroupMember:
        """Return the member of a text."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class GroupLibrary:
    """The library of a group."""

    name: str
    """gloo, or name and version of NCCL or RCCL."""
    reason: str
    """Why this one."""
    unique_id: str = ""
    """NCCL's id of the group, as hexadecimal digits; empty for gloo."""

    def to_json(self) -> str:
        """Return the library as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> GroupLibrary:
        """Return the library of a text."""
        return cls(**json.loads(text))


def choose_library(members: Sequence[GroupMember]) -> GroupLibrary:
    """Return the library of a group: that of all members, or gloo.

    NCCL rejects members with different versions, and two members on one GPU.

    Args:
        members: the trainer, then the workers of the engine.
    """
    for number, member in enumerate(members):
        if not member.library:
            return GroupLibrary(GLOO, f"{_name(number)} cannot use NCCL or RCCL: {member.reason}")
    first = members[0]
    for number, member in enumerate(members[1:], start=1):
        if member.library != first.library:
            return GroupLibrary(GLOO, f"the trainer has {first.library}, but {_name(number)} has {member.library}")
    owners: dict[str, int] = {}
    for number, member in enumerate(members):
        owner = owners.setdefault(member.device, number)
        if owner != number:
            return GroupLibrary(GLOO, f"{_name(owner)} and {_name(number)} use the same GPU")
    return GroupLibrary(first.library, "all members have a GPU of their own and this library")


def _name(number: int) -> str:
    return "the trainer" if number == 0 else f"worker {number} of the engine"
