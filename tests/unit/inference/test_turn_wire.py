"""The binary bodies of the engine's route, and the turn that grows with each part."""

import math
from dataclasses import replace

import pytest

from rstar2_train.inference.engine_errors import EngineRejected, EngineUnavailable
from rstar2_train.inference.sampled_turn import SampledTurn
from rstar2_train.inference.turn_wire import (
    SIZES,
    PartReader,
    TurnPart,
    decode_request,
    encode_part,
    encode_request,
)
from tests.support.token_arrays import logprob_array, token_array


def test_request_and_part_keep_their_values() -> None:
    """The tokens and the float32 log-probabilities of an engine arrive exactly; other bodies are refused."""
    ids = [0, 7, 2**31 - 1]
    assert decode_request(encode_request({"seed": 2**62}, ids)) == ({"seed": 2**62}, token_array(ids))
    assert encode_request({}, token_array(ids), [4]) == encode_request({}, [*ids, 4])
    part = TurnPart(token_array([1, 2]), logprob_array([-0.1, -9999.0]), (("v", 0), ("ü", 1)), "stop")
    assert PartReader().feed(encode_part(part)) == [part]
    routed = replace(part, routes=bytes(range(6)), row_bytes=2)
    assert PartReader().feed(encode_part(routed)) == [routed]
    for body in (b"", b"{}", encode_request({}, [1])[:-1], encode_request({}, [1]) + b"x"):
        with pytest.raises(ValueError, match="body"):
            decode_request(body)
    with pytest.raises(ValueError, match="head of"):
        PartReader().feed(SIZES.pack(2**31, 0))


@pytest.mark.parametrize("size", [1, 7, 8, 50, 1000])
def test_parts_arrive_in_any_pieces(size: int) -> None:
    """The network may split and join frames anywhere."""
    parts = [TurnPart(token_array([at] * at), logprob_array([-1.0] * at), (("v", 0),)) for at in range(5)]
    parts.append(TurnPart(token_array([]), logprob_array([]), (), error="x", routes=b"12", row_bytes=2))
    parts.append(parts[1])
    data = b"".join(map(encode_part, parts))
    reader = PartReader()
    assert [part for at in range(0, len(data), size) for part in reader.feed(data[at : at + size])] == parts


def test_sampled_turn_continues_with_its_versions() -> None:
    """A second engine adds the rest: each token keeps the version that sampled it, and equal versions merge."""
    turn = SampledTurn()
    turn.resume()
    turn.add(TurnPart([1, 2], [-1.0, -2.0], [("a", 0)]), url="one")
    turn.add(TurnPart([3], [-3.0], [("a", 0), ("b", 2), ("c", 3)]), url="one")  # "c" has no token yet
    turn.resume()
    turn.add(TurnPart([4, 5], [-4.0, -5.0], [("b", 0), ("d", 1)], "stop"), url="two")
    generation = turn.whole()
    assert generation.token_ids == token_array([1, 2, 3, 4, 5])
    assert generation.logprobs == logprob_array([-1.0, -2.0, -3.0, -4.0, -5.0])
    assert generation.versions == [("a", 0), ("b", 2), ("d", 4)]
    assert generation.finish_reason == "stop"


def test_sampled_turn_knows_its_next_experts() -> None:
    """A request for the rest of a turn asks for the experts that are missing; a finished turn has all but the last."""
    turn = SampledTurn(first_route=3)
    assert turn.next_route == 3
    turn.add(TurnPart([1, 2], [-1.0, -2.0], [("a", 0)], routes=bytes(8), row_bytes=2), url="one")
    assert turn.next_route == 7
    turn.resume()
    turn.add(TurnPart([3], [-3.0], [("a", 0)], "stop"), url="two")
    with pytest.raises(EngineRejected, match=r"two reports the experts of 7 of 9 tokens.*routerReplay"):
        turn.check_routes(6, url="two")
    turn.add(TurnPart([], [], [("a", 0)], "stop", routes=bytes(2), row_bytes=2), url="two")
    turn.check_routes(6, url="two")
    unwished = SampledTurn()
    assert unwished.next_route is None
    unwished.check_routes(6, url="two")


@pytest.mark.parametrize(
    ("part", "error", "message"),
    [
        (TurnPart([], [], [], error="out of memory"), EngineUnavailable, "out of memory"),
        (TurnPart([1], [], [("a", 0)]), EngineUnavailable, "0 log-probabilities for 1 tokens"),
        (TurnPart([1], [-1.0], []), EngineUnavailable, "no weight version"),
        (TurnPart([1], [math.nan], [("a", 0)]), EngineRejected, "NaN"),
        (TurnPart([1], [-1.0], [("other", 0)]), EngineUnavailable, "'other', which this rollout does not accept"),
    ],
)
def test_sampled_turn_invalid_part_adds_nothing(part: TurnPart, error: type[Exception], message: str) -> None:
    """A part that cannot be used raises, and the tokens before it stay."""
    turn = SampledTurn(accepts=lambda version: version == "a")
    turn.add(TurnPart([9], [-9.0], [("a", 0)]), url="url")
    with pytest.raises(error, match=message):
        turn.add(part, url="url")
    assert (turn.token_ids, turn.logprobs, turn.versions) == (token_array([9]), logprob_array([-9.0]), [("a", 0)])


def test_sampled_turn_aborted_request_keeps_its_tokens() -> None:
    """The tokens of a request that the engine aborts are kept; the turn is not finished."""
    turn = SampledTurn()
    with pytest.raises(EngineUnavailable, match="abort"):
        turn.add(TurnPart([1], [-1.0], [("a", 0)], "abort"), url="url")
    assert (turn.token_ids, turn.finish_reason) == (token_array([1]), None)
    with pytest.raises(EngineUnavailable, match="without a token"):
        turn.whole()
