"""The turns of one episode as a tree by token prefix, and the sequences that training reads. Pure.

A turn whose prompt starts with all tokens of an earlier turn, its prompt and its sampled tokens, continues that turn.
Any other turn is a root: the first turn of a conversation, or the first after an edit of the history.

    endpoint (a request and its generation) --> TokenTree.add
    program (end of the episode) --> TokenTree.segments --> Trajectory.segments
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rstar2_train.inference.sampled_turn import SampledTurn
from rstar2_train.rollout.trajectory import Segment, ToolCall


@dataclass(slots=True, eq=False)
class Turn:
    """One sampled turn."""

    gap_ids: array[int]
    """Tokens between the earlier turn and this one: replies of tools and users. Of a root: the whole prompt."""
    generation: SampledTurn
    parent: Turn | None
    seconds: float = 0.0
    calls: list[ToolCall] = field(default_factory=list)
    children: list[Turn] = field(default_factory=list)

    def path(self) -> list[Turn]:
        """Return the turns from the root to this one."""
        path: list[Turn] = []
        turn: Turn | None = self
        while turn is not None:
            path.append(turn)
            turn = turn.parent
        return path[::-1]

    def routes(self, start: int) -> bytes:
        """Return the reported experts of the tokens from `start` to the last but one of this turn."""
        turn, row = self.generation, self.generation.row_bytes
        if not turn.routes or turn.first_route is None:
            return b""
        before = b""
        if start < turn.first_route:
            assert self.parent is not None
            before = self.parent.routes(start)[: (turn.first_route - start) * row]
        return before + bytes(turn.routes[max(0, start - turn.first_route) * row :])

    def token_ids(self) -> array[int]:
        """Return all tokens up to the end of this turn."""
        ids = array("i")
        for turn in self.path():
            ids += turn.gap_ids + turn.generation.token_ids
        return ids


class TokenTree:
    """The turns of one episode."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        """In the order in which they were sampled."""
        self._roots: list[Turn] = []

    def add(self, prompt_ids: Sequence[int], generation: SampledTurn, *, seconds: float = 0.0) -> Turn:
        """Add a turn that was sampled after `prompt_ids`, and return it."""
        prompt = array("i", prompt_ids)
        parent, start = None, 0
        for turn, end in _prefixes(self._roots, prompt):
            if end > start:
                parent, start = turn, end
        turn = Turn(prompt[start:], generation, parent, seconds)
        (self._roots if parent is None else parent.children).append(turn)
        self.turns.append(turn)
        return turn

    def segments(self) -> tuple[list[Segment], list[ToolCall]]:
        """Return the segments of a trajectory and its calls, numbered by the model segments.

        There is one sequence for each turn that no other one continues, the last turn's first. Each sampled token is
        trained once: turns that an earlier sequence has are part of the prompt of a later one.
        """
        segments: list[Segment] = []
        calls: list[ToolCall] = []
        done: set[int] = set()
        for leaf in self._leaves():
            path = leaf.path()
            first = next(at for at, turn in enumerate(path) if id(turn) not in done)
            before = path[first - 1].token_ids() if first else array("i")
            known = 0
            for turn in path[first:]:
                if turn is path[first]:
                    segments.append(Segment("prompt", before + turn.gap_ids))
                elif turn.gap_ids:
                    segments.append(Segment("tool", turn.gap_ids))
                for call in turn.calls:
                    call.turn = len(done)
                calls += turn.calls
                done.add(id(turn))
                routes = turn.routes(known)
                segments.append(Segment.sampled(turn.generation, seconds=turn.seconds, routes=routes))
                known = len(turn.token_ids()) - 1
        return segments, calls

    def _leaves(self) -> list[Turn]:
        """Return the turns without a child: the last turn, then the others in the order in which they were sampled."""
        last = self.turns[-1:]
        return last + [turn for turn in self.turns[:-1] if not turn.children]


def _prefixes(roots: Sequence[Turn], prompt: array[int]) -> Iterator[tuple[Turn, int]]:
    """Yield each turn of the trees whose tokens, after those of its parents, start the prompt; and their end in it.

    The latest of turns with the same tokens is the first.
    """
    pending = [(turn, 0) for turn in roots]
    while pending:
        turn, at = pending.pop()
        sampled = at + len(turn.gap_ids)
        end = sampled + len(turn.generation.token_ids)
        if prompt[at:sampled] == turn.gap_ids and prompt[sampled:end] == turn.generation.token_ids:
            yield turn, end
            pending += [(child, end) for child in turn.children]
