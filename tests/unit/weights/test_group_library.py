"""The library of a group, by what its members have."""

import pytest

from rstar2_train.weights.experimental.group_library import GroupLibrary, GroupMember, choose_library

NCCL = "NCCL 2.29.7"
TRAINER, WORKER = GroupMember(NCCL, "GPU-a"), GroupMember(NCCL, "GPU-b")


def test_library_equal_libraries_are_used() -> None:
    """With one library version and a GPU per member the group uses that library."""
    assert choose_library([TRAINER, WORKER, GroupMember(NCCL, "GPU-c")]).name == NCCL


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([GroupMember("", "", "it has no GPU"), WORKER], "the trainer cannot use NCCL or RCCL: it has no GPU"),
        ([TRAINER, WORKER, GroupMember("", "", "no file")], "worker 2 of the engine cannot use NCCL or RCCL: no file"),
        ([TRAINER, GroupMember("NCCL 2.28.9", "GPU-b")], "the trainer has NCCL 2.29.7, but worker 1 of the engine has"),
        (
            [GroupMember("RCCL 2.27.7", "GPU-a"), WORKER],
            "the trainer has RCCL 2.27.7, but worker 1 of the engine has NCCL",
        ),
        ([TRAINER, WORKER, GroupMember(NCCL, "GPU-a")], "the trainer and worker 2 of the engine use the same GPU"),
    ],
)
def test_library_falls_back_to_gloo_with_reason(members: list[GroupMember], reason: str) -> None:
    """A member without a library, another version, another vendor, or a shared GPU lead to gloo."""
    library = choose_library(members)
    assert library.name == "gloo"
    assert library.reason.startswith(reason)


def test_library_json_round_trip() -> None:
    """Both texts of the agreement keep every field."""
    member = GroupMember("", "", "no 'library'\n")
    library = GroupLibrary(NCCL, "reason", "00ff")
    assert GroupMember.from_json(member.to_json()) == member
    assert GroupLibrary.from_json(library.to_json()) == library
