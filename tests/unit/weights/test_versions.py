"""Weight versions on disk: the codec, the files, the chain, and the host copy that an engine keeps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rstar2_train.weights import version_store
from rstar2_train.weights.gap_codec import decode_changes, decode_gaps, encode_changes, encode_gaps
from rstar2_train.weights.host_copy import HostCopy
from rstar2_train.weights.shard_file import BITS, Shard, ShardFileInvalid, bit_sum, write_shards
from rstar2_train.weights.version_store import VersionManifest

Weights = dict[str, NDArray[Any]]
RANKS = 2
SHAPES = {"embed": (6, 500), "norm": (3,)}


@given(st.sets(st.integers(0, 3000)))
def test_codec_gaps_round_trip(positions: set[int]) -> None:
    """Gaps below, at and above 255 return the positions."""
    sorted_positions = np.array(sorted(positions), np.int64)
    assert decode_gaps(encode_gaps(sorted_positions)).tolist() == sorted_positions.tolist()


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_codec_changes_round_trip(dtype: type) -> None:
    """Values of two and four bytes return bit for bit; blocks of another length are rejected."""
    positions = np.array([0, 254, 255, 256, 511, 70_000], np.int64)
    values = np.array([0, 1, 0x8000, 0x7FC1, 0xFFFF, 300], dtype)
    blocks = [memoryview(block) for block in encode_changes(positions, values)]
    decoded = decode_changes(blocks, np.dtype(dtype))
    assert decoded[0].tolist() == positions.tolist() and decoded[1].tolist() == values.tolist()
    with pytest.raises(ValueError, match="positions"):
        decode_changes([blocks[0], blocks[1][1:], blocks[2]], np.dtype(dtype))
    with pytest.raises(ValueError, match="compressed block"):
        decode_changes([blocks[0][:-3], *blocks[1:]], np.dtype(dtype))


def random_weights(seed: int) -> Weights:
    """Return flat bit patterns of all tensors."""
    draw = np.random.default_rng(seed)
    return {name: draw.integers(0, 2**16, np.prod(shape), np.uint16) for name, shape in SHAPES.items()}


def next_weights(weights: Weights, seed: int) -> Weights:
    """Return weights of which 1 % differ in the large tensor and none in the small one."""
    changed = {name: bits.copy() for name, bits in weights.items()}
    positions = np.random.default_rng(seed).choice(len(changed["embed"]), 30, replace=False)
    changed["embed"][positions] ^= 1
    return changed


def publish(root: Path, number: int, weights: Weights, *, base: tuple[str, Weights] | None) -> Path:
    """Write a version as two ranks would, without torch; return its folder."""
    version_id = version_store.new_id()
    folder = version_store.version_folder(root, number, version_id)
    folder.mkdir(parents=True)
    files = []
    for rank in range(RANKS):
        shards = []
        for name, bits in weights.items():
            shape = SHAPES[name]
            rows = -(-shape[0] // RANKS)
            width = int(np.prod(shape[1:]))
            start, stop = min(rank * rows, shape[0]) * width, min((rank + 1) * rows, shape[0]) * width
            part = bits[start:stop]
            positions = None if base is None else np.flatnonzero(part != base[1][name][start:stop])
            values = part if positions is None else part[positions]
            shards.append(Shard(name, shape, "bfloat16", start, len(part), bit_sum(part), positions, values))
        files.append(write_shards(folder / f"rank-{rank:04d}.shards", shards))
    version_store.write_manifest(
        folder, VersionManifest(version_id, f"v{number}", None if base is None else base[0], files)
    )
    return folder


def publish_chain(root: Path, versions: Sequence[Weights], *, first: int = 0) -> list[Path]:
    """Write a snapshot and the deltas that follow it."""
    folders: list[Path] = []
    for offset, weights in enumerate(versions):
        base = (version_store.read_manifest(folders[-1]).id, versions[offset - 1]) if folders else None
        folders.append(publish(root, first + offset, weights, base=base))
    return folders


def equal(copy: HostCopy, weights: Weights) -> bool:
    return copy.arrays.keys() == weights.keys() and all(
        np.array_equal(copy.arrays[name], bits) for name, bits in weights.items()
    )


@pytest.fixture
def versions() -> list[Weights]:
    """Four consecutive versions."""
    chain = [random_weights(0)]
    for seed in range(3):
        chain.append(next_weights(chain[-1], seed))
    return chain


def test_host_copy_follows_the_chain(tmp_path: Path, versions: list[Weights]) -> None:
    """Each update reads only the delta; a late engine reads snapshot and deltas; both hold the same bits."""
    folders = publish_chain(tmp_path, versions)
    early = HostCopy()
    for number, weights in enumerate(versions):
        early.update(folders[: number + 1])
        assert equal(early, weights)
    assert early.read_bytes == version_store.read_manifest(folders[-1]).bytes < 1000
    late = HostCopy()
    late.update(folders)
    assert equal(late, versions[-1]) and late.read_bytes > 6000
    late.update(folders)
    assert late.read_bytes == 0
    late.update(folders, fresh=True)
    assert equal(late, versions[-1]) and late.read_bytes > 6000


def test_host_copy_damaged_delta_leaves_the_copy(tmp_path: Path, versions: list[Weights]) -> None:
    """A truncated, changed, exchanged or missing file is refused before the copy changes; a snapshot heals it."""
    folders = publish_chain(tmp_path, versions)
    copy = HostCopy()
    copy.update(folders[:2])
    file = folders[2] / "rank-0001.shards"
    data = file.read_bytes()
    flipped = data[:40] + bytes([data[40] ^ 1]) + data[41:]
    damages = {
        data[:-100]: "damaged or truncated",
        flipped: "damaged or truncated",
        b"": "truncated",
        (folders[3] / file.name).read_bytes(): "not the file of its manifest",
    }
    for content, message in damages.items():
        file.write_bytes(content)
        with pytest.raises(ShardFileInvalid, match=message):
            copy.update(folders[:3])
        assert equal(copy, versions[1]) and copy.id == version_store.read_manifest(folders[1]).id
    file.unlink()
    with pytest.raises(ShardFileInvalid, match="cannot be read"):
        copy.update(folders[:3])
    copy.update(publish_chain(tmp_path, [versions[3]], first=4))
    assert equal(copy, versions[3])


def test_host_copy_other_base_is_refused(tmp_path: Path, versions: list[Weights]) -> None:
    """A delta of another run, and a delta for other weights with a forged base, are refused; a fresh read heals."""
    folders = publish_chain(tmp_path, versions[:2])
    other = publish_chain(tmp_path / "other", versions[1:3])
    with pytest.raises(ShardFileInvalid, match="starts from version"):
        HostCopy().update([folders[0], other[1]])
    with pytest.raises(ShardFileInvalid, match="starts from version"):
        HostCopy().update(other[1:])
    forged = publish(
        tmp_path / "forged", 1, versions[2], base=(version_store.read_manifest(folders[0]).id, versions[1])
    )
    copy = HostCopy()
    copy.update(folders[:1])
    with pytest.raises(ShardFileInvalid, match="applied to other weights"):
        copy.update([folders[0], forged])
    assert copy.id is None
    copy.update(folders)
    assert equal(copy, versions[1])


def test_store_prune_keeps_the_chain(tmp_path: Path, versions: list[Weights]) -> None:
    """The chain of the newest version and the version before it stay; earlier ones and a torn one are deleted."""
    old = publish_chain(tmp_path, versions)
    new = publish_chain(tmp_path, versions[:1], first=4)
    (old[0] / "manifest.json").unlink()
    assert version_store.prune(tmp_path, chain=new) == old[:3]
    assert sorted(tmp_path.iterdir()) == [old[3], *new]
    assert version_store.next_number(tmp_path) == 5
    assert version_store.next_number(tmp_path / "absent") == 0


def test_store_unreadable_manifest_is_named(tmp_path: Path) -> None:
    """A missing manifest, one of another format and one without JSON name the file."""
    path = tmp_path / "manifest.json"
    for text in (None, "{", '{"format": 9}', "[]", '{"format": 1, "files": []}'):
        if text is not None:
            path.write_text(text)
        with pytest.raises(ShardFileInvalid, match=r"manifest\.json"):
            version_store.read_manifest(tmp_path)


def test_bits_sum_is_independent_of_the_split() -> None:
    """The checksum is a plain sum, so that it is the same on a GPU."""
    bits = np.array([1, 0xFFFF, 0x8000], BITS["bfloat16"])
    assert bit_sum(bits) == 1 - 1 - 2**15
