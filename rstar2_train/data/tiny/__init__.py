"""The tiny task: a whole curriculum's data and base model, made on the spot from a seed.

Problems, imperfect demonstrations, tokenizer and a base model with random weights; nothing is downloaded. A manifest
names the files as `generated://tiny/...`; `rstar2_train.data.sources` calls `write_tiny` for it.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rstar2_train.data.tiny.demonstrations import DemonstrationFlaws, demonstrate
from rstar2_train.data.tiny.policy import write_policy
from rstar2_train.data.tiny.tasks import LARGEST, LEVELS, OPERATIONS, draw_chains, to_problem

VERSION = 4
"""Raise when anything made here changes: data of an older version is then not used again."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How much of what is made. Shares are by level (1, 2, 3) and add up to 1."""

    demo_problems: int = 6000
    demos_per_problem: int = 2
    demo_shares: tuple[float, ...] = (1 / 3, 1 / 3, 1 / 3)
    pools: Mapping[str, tuple[int, tuple[float, ...]]] = field(
        default_factory=lambda: {
            "rl-1": (400, (0.8, 0.1, 0.1)),
            "rl-2": (400, (0.2, 0.6, 0.2)),
            "rl-3": (80, (0.1, 0.3, 0.6)),
            "roc": (400, (0.5, 0.3, 0.2)),
        }
    )
    """Training problems of each RL stage (`roc`: of the comparison with plain GRPO): count, shares."""
    held_out: Mapping[str, int] = field(default_factory=lambda: {"choose": 300, "report": 480})
    """Problems nobody trains on, all levels alike: `choose` to pick settings with, `report` to publish."""
    largest: int = LARGEST
    """Largest number in a problem."""
    flaws: DemonstrationFlaws = field(default_factory=DemonstrationFlaws)


SMOKE = Recipe(
    demo_problems=100,
    demos_per_problem=3,
    demo_shares=(0.6, 0.2, 0.2),
    pools={name: (24, (0.8, 0.1, 0.1)) for name in ("rl-1", "rl-2", "rl-3", "roc")},
    held_out={"choose": 12, "report": 12},
    largest=6,
    flaws=DemonstrationFlaws(right=0.8, bad_call=0.2, slip=0.0),
)
"""So little, and so easy, that a few dozen SFT steps are enough to call the tool and to be right now and then:
with it a whole curriculum passes every part of the system in a minute, and learns next to nothing."""


def write_tiny(directory: Path, *, seed: int, recipe: Recipe | None = None) -> None:
    """Write the tiny task into the existing folder `directory`: the same bytes for the same seed.

    Makes `sft.jsonl` (rows `{messages, level}`), the problems of the stages, `choose.jsonl` and `report.jsonl` (rows
    `{id, problem, answer, slice, hard}`), and `base/`, a Hugging Face folder of the untrained policy. No problem
    text is in two of these files.
    """
    recipe = recipe or Recipe()
    rng = random.Random(f"tiny/{seed}")
    seen: set[str] = set()
    for name, count in recipe.held_out.items():
        # Levels take turns, so that the first n problems are a fair sample too (`validation.maxProblems`).
        levels = [LEVELS[index % len(LEVELS)] for index in range(count)]
        _write_problems(directory / f"{name}.jsonl", rng=rng, levels=levels, seen=seen, largest=recipe.largest)
    for name, (count, shares) in recipe.pools.items():
        levels = _spread(count, shares)
        rng.shuffle(levels)
        _write_problems(directory / f"{name}.jsonl", rng=rng, levels=levels, seen=seen, largest=recipe.largest)
    chains = draw_chains(
        rng, levels=_spread(recipe.demo_problems, recipe.demo_shares), seen=seen, largest=recipe.largest
    )
    demos: list[dict[str, Any]] = [
        {"messages": demonstrate(chain, rng, flaws=recipe.flaws), "level": chain.level}
        for chain in chains
        for _ in range(recipe.demos_per_problem)
    ]
    rng.shuffle(demos)
    _write_rows(directory / "sft.jsonl", demos)
    # The tokenizer needs each phrase often, not each demonstration.
    texts = (_plain(demo["messages"]) for demo in demos[:1500])
    write_policy(directory / "base", texts=texts, seed=seed)


def _write_problems(path: Path, *, rng: random.Random, levels: list[int], seen: set[str], largest: int) -> None:
    chains = draw_chains(rng, levels=levels, seen=seen, largest=largest)
    _write_rows(
        path, (asdict(to_problem(chain, identity=f"{path.stem}-{index:04d}")) for index, chain in enumerate(chains))
    )


def _spread(count: int, shares: tuple[float, ...]) -> list[int]:
    """`count` levels in the given shares, rounded so that none is lost."""
    ends = [round(count * sum(shares[: index + 1])) for index in range(len(shares))]
    return [level for level, start, end in zip(LEVELS, [0, *ends], ends, strict=False) for _ in range(end - start)]


def _plain(messages: list[dict[str, Any]]) -> str:
    """A conversation in the chat template's form, for the tokenizer to learn its pieces from.

    Without the names of the operations: so they are spelled in 2 to 10 tokens, no number stands at a fixed distance
    from where it is copied to, and copying is learnt by what stands beside it (measured: far sooner).
    """
    turns = []
    for message in messages:
        content = message["content"]
        if message["role"] == "user":
            content = re.sub(rf"({'|'.join(OPERATIONS)}) ", "", content)
        if message["role"] == "tool":
            content = f"<tool_response>\n{content}\n</tool_response>"
        role = "user" if message["role"] == "tool" else message["role"]
        turns.append(f"<|im_start|>{role}\n<|im_end|>{content}<|im_end|>\n")
    return "".join(turns)


def _write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
