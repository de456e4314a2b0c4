"""Hardware profiles: memory, arithmetic, links and storage of one kind of device, each figure with its source.

`hardware_profiles.json` has the profiles by name. A file with the same fields is a profile too, such as the one that
`rstar2 plan --measure` writes.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from pydantic import ConfigDict, Field, ValidationError

from rstar2_train.api.base import ApiModel
from rstar2_train.api.roles import Vendor
from rstar2_train.utils.text import reason

PROFILES = Path(__file__).with_name("hardware_profiles.json")
DEFAULT_PROFILES: dict[Vendor, str] = {"AMD": "mi300x", "NVIDIA": "h100", "None": "cpu"}
"""Profile of a manifest by its spec.accelerator.vendor."""


class ProfileError(ValueError):
    """A hardware profile is unknown or invalid. The message names the file and the field."""


class HardwareProfile(ApiModel):
    """One kind of device. Rates are those that a job reaches, not the peaks of the data sheet."""

    model_config = ApiModel.model_config | ConfigDict(strict=False, frozen=True)

    device: str
    """Name of the device."""
    vendor: Vendor
    """Vendor of the device; None: CPU."""
    memory_bytes: float = Field(gt=0)
    """Bytes of memory per device."""
    bandwidth: float = Field(gt=0)
    """Bytes per second that a decode step reads from memory, per device."""
    engine_flops: float = Field(gt=0)
    """Operations per second of an engine in prefill and in the batch of a decode step, per device."""
    train_flops: float = Field(gt=0)
    """Operations per second of a training step, recomputation included, per device."""
    launch_seconds: float = Field(ge=0)
    """Fixed seconds of a decode step."""
    micro_batch_seconds: float = Field(default=0, ge=0)
    """Fixed seconds of a forward and backward pass."""
    update_seconds: float = Field(default=0, ge=0)
    """Fixed seconds of an update: distribution of the rollouts, clip, optimiser."""
    node_link: float = Field(gt=0)
    """Bytes per second and direction between the devices of a node, per device."""
    rdma_device: float = Field(gt=0)
    """Bytes per second and direction of one RDMA device."""
    network: float = Field(gt=0)
    """Bytes per second and direction of a node without RDMA."""
    storage: float = Field(gt=0)
    """Bytes per second of the shared storage, all pods together."""
    call_cpu_seconds: float = Field(default=0.02, gt=0)
    """CPU seconds of one tool call in its sandbox."""
    sources: dict[str, str] = Field(default_factory=dict)
    """JSON name of a field -> origin of its figure."""


def load_profile(name: str) -> HardwareProfile:
    """Return the profile of a name in `hardware_profiles.json`, or of a JSON file. Raises ProfileError."""
    profiles = json.loads(PROFILES.read_text(encoding="utf-8"))
    if name in profiles:
        return HardwareProfile.model_validate(profiles[name])
    path = Path(name)
    if not path.is_file():
        raise ProfileError(f"{name} is neither a hardware profile ({', '.join(profiles)}) nor a file")
    try:
        return HardwareProfile.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'file'}: {fault['msg']}" for fault in error.errors())
        raise ProfileError(f"{path}: {faults}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: {reason(error)}") from error


@cache
def largest_device(vendor: Vendor) -> HardwareProfile:
    """Return the vendor's profile with the most memory per device."""
    profiles = [HardwareProfile.model_validate(profile) for profile in json.loads(PROFILES.read_text("utf-8")).values()]
    return max((profile for profile in profiles if profile.vendor == vendor), key=lambda profile: profile.memory_bytes)
