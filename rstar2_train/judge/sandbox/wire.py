"""The protocol between a judge worker and an executor's server over TCP: frames and authentication.

A frame is (channel, bytes). Each lane has a channel, which carries what a pipe carries for a local sandbox; one more
channel carries control messages in JSON. The executor holds no secret: it sends a nonce and serves a peer that signs
it with the workers' key, of which the executor has the public half. Pure, except for reading connections and key files.
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
"""Channel of control messages; the channels of lanes start at 0."""
MAX_FRAME = 1 << 16
NONCE_BYTES = 32
PING_SECONDS = 5.0
SILENCE_SECONDS = 40.0
"""Timeout without any data, after which the peer counts as gone: both sides ping."""
_HEAD = struct.Struct("<BI")
_CONTEXT = b"rstar2 judge worker to executor, protocol 1\0"


class WireError(Exception):
    """The peer violates the protocol."""


def frames(channel: int, data: bytes) -> Iterator[bytes]:
    """Split `data` into frames of at most MAX_FRAME bytes."""
    for start in range(0, len(data), MAX_FRAME):
        part = data[start : start + MAX_FRAME]
        yield _HEAD.pack(channel, len(part)) + part


def control(**message: Any) -> bytes:
    """Return a control message as a frame."""
    data = json.dumps(message).encode()
    return _HEAD.pack(CONTROL, len(data)) + data


async def receive(reader: asyncio.StreamReader) -> bytes:
    """Return the next data of the peer, at most MAX_FRAME bytes; empty at the end. Raises TimeoutError on silence."""
    async with asyncio.timeout(SILENCE_SECONDS):
        return await reader.read(MAX_FRAME)


class FrameDecoder:
    """Splits a stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the frames that are complete. Raises WireError for a frame that is too long."""
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            channel, size = _HEAD.unpack_from(self._buffer)
            if size > MAX_FRAME:
                raise WireError(f"a frame has {size} bytes; at most {MAX_FRAME} are allowed")
            end = _HEAD.size + size
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_HEAD.size : end])
            del self._buffer[:end]
            yield channel, body


def message(body: bytes) -> dict[str, Any]:
    """Decode a control message. Raises WireError."""
    try:
        value = json.loads(body)
    except ValueError as error:
        raise WireError(f"a control message is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise WireError("a control message is not a JSON object")
    return value


def sign(key: Ed25519PrivateKey, nonce: bytes) -> bytes:
    """Return a worker's signature of an executor's nonce."""
    return key.sign(_CONTEXT + nonce)


def is_worker(key: Ed25519PublicKey, nonce: bytes, signature: bytes) -> bool:
    """Return whether the signature of the nonce was made with the workers' private key."""
    try:
        key.verify(signature, _CONTEXT + nonce)
    except InvalidSignature:
        return False
    return True


def read_private_key(file: Path) -> Ed25519PrivateKey:
    """Read the workers' private key (PEM). Raises SetupError."""
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise SetupError(f"{file}: cannot read a private key (PEM): {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SetupError(f"{file}: the private key is not an Ed25519 key.")
    return key


def read_public_key(file: Path) -> Ed25519PublicKey:
    """Read the workers' public key (PEM). Raises SetupError."""
    try:
        key = serialization.load_pem_public_key(file.read_bytes())
    except (OSError, ValueError) as error:
        raise SetupError(f"{file}: cannot read a public key (PEM): {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise SetupError(f"{file}: the public key is not an Ed25519 key.")
    return key
