"""The tree of an episode's turns: which sequences training reads, and that it trains each token once."""

from __future__ import annotations

import random

from rstar2_train.inference.sampled_turn import SampledTurn
from rstar2_train.rollout.agent_program.tree import TokenTree
from rstar2_train.rollout.trajectory import ToolCall, Trajectory
from tests.support.token_arrays import logprob_array, token_array


def generation(*token_ids: int, version: str = "v1") -> SampledTurn:
    return SampledTurn(
        token_array(token_ids), logprob_array(-float(token) for token in token_ids), "stop", [(version, 0)]
    )


def sequences(tree: TokenTree) -> list[tuple[list[int], list[int], list[int]]]:
    """Return prompt, response and mask of each sequence."""
    segments, _ = tree.segments()
    parts = Trajectory("p", 0, prompt_ids=token_array([1000]), segments=segments).sequences()
    starts = [int(part.mask.argmax()) for part in parts]
    return [
        (part.ids[:start].tolist(), part.ids[start:].tolist(), part.mask[start:].astype(int).tolist())
        for part, start in zip(parts, starts, strict=True)
    ]


def rows(token_ids: list[int]) -> bytes:
    """Return experts, two bytes for each token but the last, that name the token and its position."""
    return b"".join(bytes([token % 256, at]) for at, token in enumerate(token_ids[:-1]))


def test_tree_extended_history_is_one_sequence() -> None:
    """Prompts that extend an earlier turn, and only append to it, give one sequence with masked replies."""
    tree = TokenTree()
    tree.add([1, 2], generation(3, 4))
    tree.add([1, 2, 3, 4, 5], generation(6))
    tree.add([1, 2, 3, 4, 5, 6], generation(7))
    assert sequences(tree) == [([1, 2], [3, 4, 5, 6, 7], [1, 1, 0, 1, 1])]
    segments, _ = tree.segments()
    assert [segment.kind for segment in segments] == ["prompt", "model", "tool", "model", "model"]


def test_tree_rewritten_history_starts_a_sequence() -> None:
    """A prompt that leaves an earlier turn at a token starts a sequence; shared turns are trained in the first one."""
    tree = TokenTree()
    tree.add([1], generation(2))
    tree.add([1, 2, 3], generation(4))
    tree.add([1, 2, 9], generation(5))  # another reply to the same turn
    tree.add([1, 2, 9, 5, 6], generation(7))
    assert sequences(tree) == [([1], [2, 9, 5, 6, 7], [1, 0, 1, 0, 1]), ([1, 2, 3], [4], [1])]


def test_tree_other_conversation_is_a_root() -> None:
    """A second conversation shares nothing; a summary of the first one is a conversation of its own."""
    tree = TokenTree()
    tree.add([1], generation(2))
    tree.add([8, 8], generation(2))
    tree.add([1, 3], generation(4))  # starts as the first prompt, but lacks its turn
    assert sequences(tree) == [([1, 3], [4], [1]), ([1], [2], [1]), ([8, 8], [2], [1])]


def test_tree_repeated_turn_continues_the_latest() -> None:
    """After two equal samples of one prompt, the next turn continues the later one; both are trained."""
    tree = TokenTree()
    first = tree.add([1], generation(2))
    second = tree.add([1], generation(2))
    assert tree.add([1, 2, 3], generation(4)).parent is second
    assert not first.children
    assert sequences(tree) == [([1], [2, 3, 4], [1, 0, 1]), ([1], [2], [1])]


def test_tree_keeps_logprobs_versions_and_calls() -> None:
    """Log-probabilities and versions belong to their tokens; a call has the number of its model segment."""
    tree = TokenTree()
    first = tree.add([1], generation(2, version="v1"))
    other = tree.add([5], generation(6, version="v2"))
    last = tree.add([1, 2, 3], generation(4, version="v3"))
    for turn, name in ((first, "a"), (other, "b"), (last, "c")):
        turn.calls.append(ToolCall(0, name, "{}", "", "ok", ""))
    segments, calls = tree.segments()
    model = [segment for segment in segments if segment.kind == "model"]
    assert [(segment.weight_version, segment.logprobs.tolist()) for segment in model] == [
        ("v1", [-2.0]),
        ("v3", [-4.0]),
        ("v2", [-6.0]),
    ]
    assert [(call.name, call.turn) for call in calls] == [("a", 0), ("c", 1), ("b", 2)]


def test_tree_random_histories_train_each_token_once() -> None:
    """For any edits of the history: each sampled token is trained once, after exactly the tokens of its request.

    Each sequence has the experts of all its tokens but the last, also if the engine reported only those of new tokens.
    """
    for seed in range(50):
        draw = random.Random(seed)
        tree, requests, histories, token = TokenTree(), {}, [[1]], 10
        for _ in range(draw.randint(1, 12)):
            history = draw.choice(histories)
            prompt = history[: draw.randint(1, len(history))] + [draw.randint(2, 4) for _ in range(draw.randint(0, 2))]
            sampled = list(range(token, token + draw.randint(1, 3)))
            token = sampled[-1] + 1
            whole = [*prompt, *sampled]
            last = histories[-1] if len(histories) > 1 else []
            first = len(last) - 1 if last and prompt[: len(last)] == last else 0
            turn = generation(*sampled)
            turn.first_route, turn.routes, turn.row_bytes = first, bytearray(rows(whole)[2 * first :]), 2
            tree.add(prompt, turn)
            requests[sampled[0]] = (prompt, sampled)
            histories.append(prompt + sampled)
        trained = []
        segments, _ = tree.segments()
        for part in Trajectory("p", 0, prompt_ids=token_array([1000]), segments=segments).sequences():
            assert part.routes == rows(part.ids.tolist())
        for prompt_ids, response, mask in sequences(tree):
            whole, masks = prompt_ids + response, [0] * len(prompt_ids) + mask
            for at, bit in enumerate(masks):
                if bit and whole[at] in requests:
                    prompt, sampled = requests[whole[at]]
                    assert whole[:at] == prompt and whole[at : at + len(sampled)] == sampled
            trained += [number for number, bit in zip(whole, masks, strict=True) if bit]
        assert sorted(trained) == list(range(10, token)), seed
