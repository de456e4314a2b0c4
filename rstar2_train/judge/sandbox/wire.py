"""What a judge worker and an executor's server say to each other over TCP: frames, and who may be served.

A frame is (channel, bytes): one channel a lane, which carries what a pipe carries locally, and one for control
messages in JSON. The executor has no secret: it sends a nonce, and serves whoever signs it with the key whose public
half it was given. Pure, but for reading connections and key files.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from rstar2_train.judge.sandbox.rootfs import SetupError

CONTROL = 255
"""Channel of control messages; the lanes' begin at 0."""
MAX_FRAME = 1 << 16
NONCE_BYTES = 32
PING_SECONDS = 5.0
SILENCE_SECONDS = 40.0
"""A peer that sent nothing for so long is gone: both ping."""
_HEAD = struct.Struct("<BI")
_CONTEXT = b"rstar2 judge worker to executor, protocol 1\0"


class WireError(Exception):
    """The peer does not keep to the protocol."""


def frames(channel: int, data: bytes) -> Iterator[bytes]:
    """`data` as frames of at most MAX_FRAME bytes."""
    for start in range(0, len(data), MAX_FRAME):
        part = data[start : start + MAX_FRAME]
        yield _HEAD.pack(channel, len(part)) + part


def control(**message: Any) -> bytes:
    """A control message as a frame."""
    data = json.dumps(message).encode()
    return _HEAD.pack(CONTROL, len(data)) + data


async def receive(reader: asyncio.StreamReader) -> bytes:
    """What the peer has sent, at most MAX_FRAME bytes; empty at its end. Raises TimeoutError when the peer is gone."""
    async with asyncio.timeout(SILENCE_SECONDS):
        return await reader.read(MAX_FRAME)


class FrameDecoder:
    """Cuts a stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The frames that are complete now. Raises WireError for one that is too long."""
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            channel, size = _HEAD.unpack_from(self._buffer)
            if size > MAX_FRAME:
                raise WireError(f"a frame of {size} bytes")
            end = _HEAD.size + size
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_HEAD.size : end])
            del self._buffer[:end]
            yield channel, body


def message(body: bytes) -> dict[str, Any]:
    """A control message. Raises WireError."""
    try:
        found = json.loads(body)
    except ValueError as error:
        raise WireError(f"a control message that is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise WireError("a control message that is no object")
    return found


def sign(key: Ed25519PrivateKey, nonce: bytes) -> bytes:
    """A worker's answer to an executor's nonce."""
    return key.sign(_CONTEXT + nonce)


def is_worker(key: Ed25519PublicKey, nonce: bytes, signature: bytes) -> bool:
    """Whether the answer to a nonce is a worker's."""
    try:
        key.verify(signature, _CONTEXT + nonce)
    except InvalidSignature:
        return False
    return True


def read_private_key(file: Path) -> Ed25519PrivateKey:
    """The workers' key (PEM). Raises SetupError."""
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise SetupError(f"{file}: no private key can be read from it: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SetupError(f"{file} holds no Ed25519 private key")
    return key


def read_public_key(file: Path) -> Ed25519PublicKey:
    """The public half (PEM). Raises SetupError."""
    try:
        key = serialization.load_pem_public_key(file.read_bytes())
    except (OSError, ValueError) as error:
        raise SetupError(f"{file}: no public key can be read from it: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise SetupError(f"{file} holds no Ed25519 public key")
    return key
