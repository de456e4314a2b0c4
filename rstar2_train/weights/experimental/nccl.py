"""NCCL or RCCL through ctypes: the functions of a broadcast that can be aborted. RCCL has NCCL's interface.

torch's own NCCL group ends the process when a collective exceeds its timeout; here only the communicator ends. Every
communicator is non-blocking: a call may return "in progress" until `is_ready`. No torch. Source:
nccl.h and init.cc of NCCL 2.29.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

CUDA_NAMES = ("libnccl.so.2",)
ROCM_NAMES = ("librccl.so.1", "librccl.so")
"""Names under which the loader finds the library: torch has loaded it, from its own folder if need be."""

_SUCCESS, _IN_PROGRESS, _UINT8 = 0, 7, 1
_FUNCTIONS = (
    "ncclGetVersion",
    "ncclGetUniqueId",
    "ncclCommInitRankConfig",
    "ncclCommGetAsyncError",
    "ncclBroadcast",
    "ncclCommFinalize",
    "ncclCommDestroy",
    "ncclCommAbort",
    "ncclGetErrorString",
    "ncclGetLastError",
)


class _UniqueId(ctypes.Structure):
    _fields_ = [("content", ctypes.c_byte * 128)]


class _Config(ctypes.Structure):
    """ncclConfig_t of version 2.14, the first one with `blocking`; a later library sets its own defaults."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
    ]


class NcclFailed(RuntimeError):
    """A call of the library, or the communicator, failed."""


class NcclLibrary:
    """A loaded library."""

    def __init__(self, library: ctypes.CDLL, *, name: str) -> None:
        """`name`: NCCL or RCCL. Raises NcclFailed if a function is missing: the library is older than 2.14."""
        missing = [function for function in _FUNCTIONS if not hasattr(library, function)]
        if missing:
            raise NcclFailed(f"{name} is older than 2.14: it has no {missing[0]}")
        self._library = library
        library.ncclGetErrorString.restype = ctypes.c_char_p
        library.ncclGetLastError.restype = ctypes.c_char_p
        version = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(version))
        major, rest = divmod(version.value, 10_000)
        self.name = f"{name} {major}.{rest // 100}.{rest % 100}"
        """Name and version, such as NCCL 2.29.7."""

    def call(self, function: str, *arguments: object) -> None:
        """Call a function. Raises NcclFailed unless it ended, or continues in the background."""
        self.check(getattr(self._library, function)(*arguments), function)

    def check(self, result: int, function: str) -> None:
        """Raise NcclFailed with the library's text if `result` is an error."""
        if result not in (_SUCCESS, _IN_PROGRESS):
            text = self._library.ncclGetErrorString(result).decode(errors="replace")
            detail = (self._library.ncclGetLastError(None) or b"").decode(errors="replace").strip()
            raise NcclFailed(f"{function}: {text}{f' ({detail})' if detail else ''}")

    def unique_id(self) -> bytes:
        """Return the id of a new group: the address where its first member waits."""
        unique_id = _UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(unique_id))
        return bytes(unique_id)


class Communicator:
    """One member of a group, on the thread's current device. Joining continues in the background."""

    def __init__(self, library: NcclLibrary, unique_id: bytes, *, rank: int, members: int) -> None:
        """Start to join the group. Raises NcclFailed."""
        self._library = library
        self._handle = ctypes.c_void_p()
        config = _Config(ctypes.sizeof(_Config), 0xCAFEBEEF, 21400, 0)
        self._call(
            "ncclCommInitRankConfig",
            ctypes.byref(self._handle),
            ctypes.c_int(members),
            _UniqueId.from_buffer_copy(unique_id),
            ctypes.c_int(rank),
            ctypes.byref(config),
        )

    def _call(self, function: str, *arguments: object) -> None:
        self._library.call(function, *arguments)

    def is_ready(self) -> bool:
        """Return whether the last call has ended on the host. Raises NcclFailed if the communicator failed."""
        state = ctypes.c_int()
        self._call("ncclCommGetAsyncError", self._handle, ctypes.byref(state))
        self._library.check(state.value, "ncclCommGetAsyncError")
        return state.value == _SUCCESS

    def broadcast(self, pointer: int, size: int, *, stream: int) -> None:
        """Put a broadcast of `size` bytes from rank 0 on a stream. Raises NcclFailed."""
        buffer = ctypes.c_void_p(pointer)
        root = ctypes.c_int(0)
        self._call(
            "ncclBroadcast",
            buffer,
            buffer,
            ctypes.c_size_t(size),
            ctypes.c_int(_UINT8),
            root,
            self._handle,
            ctypes.c_void_p(stream),
        )

    def finalize(self) -> None:
        """Start to send what the library still holds, until `is_ready`. Raises NcclFailed."""
        self._call("ncclCommFinalize", self._handle)

    def destroy(self) -> None:
        """Free a communicator that is finalized. Raises NcclFailed."""
        self._call("ncclCommDestroy", self._handle)

    def abort(self) -> None:
        """End the calls in progress, also on the device, and free the communicator. Raises NcclFailed."""
        self._call("ncclCommAbort", self._handle)


def load(names: Sequence[str], *, name: str) -> NcclLibrary:
    """Load the first library of `names` that the loader finds. Raises NcclFailed with the loader's reasons."""
    reasons = []
    for candidate in names:
        try:
            library = ctypes.CDLL(candidate)
        except OSError as error:
            reasons.append(str(error))
            continue
        return NcclLibrary(library, name=name)
    raise NcclFailed("; ".join(reasons))
