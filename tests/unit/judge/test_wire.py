"""Frames between workers and executors, and who is a worker."""

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
def test_what_is_framed_comes_out_however_it_is_cut(sent: list[tuple[int, bytes]], size: int) -> None:
    stream = b"".join(frame for channel, data in sent for frame in wire.frames(channel, data))
    unframe = wire.FrameDecoder()
    got: list[tuple[int, bytes]] = []
    for start in range(0, len(stream), size):
        got += unframe.feed(stream[start : start + size])
    joined: list[tuple[int, bytes]] = []
    left = iter(got)
    for channel, data in sent:
        whole = b""
        while len(whole) < len(data):
            at, part = next(left)
            assert at == channel and 0 < len(part) <= wire.MAX_FRAME
            whole += part
        joined.append((channel, whole))
    assert joined == sent and next(left, None) is None


def test_nonsense_is_refused() -> None:
    with pytest.raises(wire.WireError, match="a frame of 4294967295 bytes"):
        list(wire.FrameDecoder().feed(b"\xff" * 8))
    for body in (b"", b"{", b"[1]", b"\xff\xfe"):
        with pytest.raises(wire.WireError):
            wire.message(body)


def test_only_the_holder_of_the_key_is_a_worker() -> None:
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    nonce = b"n" * wire.NONCE_BYTES
    public = key.public_key()
    assert wire.is_worker(public, nonce, wire.sign(key, nonce))
    assert not wire.is_worker(public, b"m" * wire.NONCE_BYTES, wire.sign(key, nonce))
    assert not wire.is_worker(public, nonce, wire.sign(other, nonce))
    assert not wire.is_worker(public, nonce, key.sign(nonce))  # signed for another purpose
    assert not wire.is_worker(public, nonce, b"")


def test_files_that_hold_no_key(tmp_path: Path) -> None:
    file = tmp_path / "key"
    for read in (wire.read_private_key, wire.read_public_key):
        with pytest.raises(SetupError, match="can be read from it"):
            read(file)
    file.write_text("-----BEGIN NOTHING-----")
    for read in (wire.read_private_key, wire.read_public_key):
        with pytest.raises(SetupError, match="can be read from it"):
            read(file)
