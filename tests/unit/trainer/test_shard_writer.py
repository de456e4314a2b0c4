"""A rank's files of weight versions: the base of a delta, and a full disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rstar2_train.api.contracts import StageFailed
from rstar2_train.capacity.model_support import UnsupportedModel
from rstar2_train.trainer import checkpoint
from rstar2_train.trainer.shard_writer import ShardWriter, signed_bits, tensor_bit_sum
from rstar2_train.weights import version_store
from rstar2_train.weights.host_copy import HostCopy
from rstar2_train.weights.shard_file import BITS, bit_sum
from rstar2_train.weights.version_store import VersionManifest
from tests.support.full_disk import small_disk


class Parameter:
    """A tensor that one rank holds whole, as a DTensor of one rank."""

    placements = ()

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        self.shape = values.shape

    def to_local(self) -> torch.Tensor:
        return self.values


def publish(writer: ShardWriter, root: Path, values: torch.Tensor, *, number: int, base: str | None) -> Path:
    """Write and commit a version as the trainer does."""
    version_id = f"{number:012x}"
    folder = version_store.version_folder(root, number, version_id)
    with checkpoint.write_folder(folder, durable=False) as aside:
        files = [writer.write(aside, {"w": Parameter(values)}, base=base)]
        version_store.write_manifest(aside, VersionManifest(version_id, f"v{number}", base, files))
    writer.commit(version_id)
    return folder


def test_shard_writer_foreign_base_is_refused(tmp_path: Path) -> None:
    """Changes are written only to the version that this writer committed last; a snapshot is always possible."""
    writer = ShardWriter(rank=0, dtype=torch.bfloat16)
    values = torch.randn(8, 4)
    with pytest.raises(ValueError, match="rank 0 cannot write the changes to version 1: its last version is None"):
        publish(writer, tmp_path, values, number=0, base="1")
    first = publish(writer, tmp_path, values, number=1, base=None)
    with pytest.raises(ValueError, match=r"its last version is 000000000001; publish a snapshot first"):
        publish(writer, tmp_path, values, number=2, base="other")
    values[3, 2] += 1
    second = publish(writer, tmp_path, values, number=3, base="000000000001")
    copy = HostCopy()
    copy.update([first, second])
    assert copy.arrays["w"].tolist() == signed_bits(values.bfloat16()).numpy().view(BITS["bfloat16"]).tolist()


@pytest.mark.parametrize("value", [65504.0, 7e4, -7e4])
def test_shard_writer_refuses_values_that_float16_cannot_hold(tmp_path: Path, value: float) -> None:
    """No version has infinite weights; the largest value is held."""
    writer = ShardWriter(rank=0, dtype=torch.float16)
    if value == 65504.0:
        publish(writer, tmp_path, torch.full((8, 4), value), number=1, base=None)
        return
    with pytest.raises(UnsupportedModel, match=r"w has values that torch.float16 cannot hold: convert the base"):
        publish(writer, tmp_path, torch.full((8, 4), value), number=1, base=None)


def test_shard_writer_full_disk_keeps_the_last_version(tmp_path: Path) -> None:
    """A version that does not fit leaves no files; the version before stays complete and is the base of the next."""
    with small_disk(tmp_path / "disk", mebibytes=1) as root:
        writer = ShardWriter(rank=0, dtype=torch.float32)
        values = torch.randn(512, 256)
        first = publish(writer, root, values, number=0, base=None)
        after = values + 1
        (root / "other").write_bytes(bytes(2**18))
        with pytest.raises(StageFailed, match="no space left to write") as failure:
            publish(writer, root, after, number=1, base="000000000000")
        assert failure.value.reason == "StorageFull"
        assert sorted(path.name for path in root.iterdir()) == [first.name, "other"]
        values[0, 0] += 1
        second = publish(writer, root, values, number=2, base="000000000000")
        copy = HostCopy()
        copy.update([first, second])
        assert copy.arrays["w"].tolist() == signed_bits(values).numpy().view(BITS["float32"]).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensor_bit_sum_equals_that_of_the_files(dtype: torch.dtype) -> None:
    """Trainer and engine compute the same checksum of a tensor."""
    bits = signed_bits(torch.randn(3, 5).to(dtype))
    assert bits.shape == (15,)
    assert tensor_bit_sum(bits) == bit_sum(bits.numpy()) != 0
