"""The protocol between workers and executors: frames, control messages, keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from rstar2_train.judge.sandbox import wire
from rstar2_train.judge.sandbox.rootfs import SetupError


@given(
    st.lists(st.tuples(st.integers(0, 254), st.binary(min_size=1, max_size=200_000)), max_size=5),
    st.integers(1, 70_000),
)
def test_frame_decoder_joins_split_frames(sent: list[tuple[int, bytes]], size: int) -> None:
    """The stream may be cut at any byte."""
    stream = b"".join(frame for channel, data in sent for frame in wire.frames(channel, data))
    decoder = wire.FrameDecoder()
    received: list[tuple[int, bytes]] = []
    for start in range(0, len(stream), size):
        received += decoder.feed(stream[start : start + size])
    joined: list[tuple[int, bytes]] = []
    parts = iter(received)
    for channel, data in sent:
        whole = b""
        while len(whole) < len(data):
            part_channel, part = next(parts)
            assert part_channel == channel and 0 < len(part) <= wire.MAX_FRAME
            whole += part
        joined.append((channel, whole))
    assert joined == sent and next(parts, None) is None


def test_invalid_frames_and_messages_are_rejected() -> None:
    """A peer that violates the protocol raises WireError."""
    with pytest.raises(wire.WireError, match="a frame has 4294967295 bytes"):
        list(wire.FrameDecoder().feed(b"\xff" * 8))
    for body in (b"", b"{", b"[1]", b"\xff\xfe"):
        with pytest.raises(wire.WireError):
            wire.message(body)


def test_is_worker_accepts_only_the_workers_key() -> None:
    """The signature must be of this nonce, by this key, for this purpose."""
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    nonce = b"n" * wire.NONCE_BYTES
    public = key.public_key()
    assert wire.is_worker(public, nonce, wire.sign(key, nonce))
    assert not wire.is_worker(public, b"m" * wire.NONCE_BYTES, wire.sign(key, nonce))
    assert not wire.is_worker(public, nonce, wire.sign(other, nonce))
    assert not wire.is_worker(public, nonce, key.sign(nonce))  # signed for another purpose
    assert not wire.is_worker(public, nonce, b"")


def test_read_key_rejects_missing_and_invalid_files(tmp_path: Path) -> None:
    """The error names the problem of the key file."""
    file = tmp_path / "key"
    for read in (wire.read_private_key, wire.read_public_key):
        with pytest.raises(SetupError, match="cannot read a"):
            read(file)
    file.write_text("-----BEGIN NOTHING-----")
    for read in (wire.read_private_key, wire.read_public_key):
        with pytest.raises(SetupError, match="cannot read a"):
            read(file)
