"""The file that `rstar2 simulate` reads: engines, hardware, trajectories, and the policies to compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import ConfigDict, Field, ValidationError

from rstar2_train.api.base import ApiModel
from rstar2_train.inference.policies import PolicyName, SchedulingPolicy, make_policy
from rstar2_train.simulation.hardware import Hardware, HardwareError, load_hardware
from rstar2_train.simulation.workload import LengthStatistics, SimulatedTrajectory, draw_step, read_steps
from rstar2_train.utils.text import reason


class SimulationError(ValueError):
    """The settings cannot be read or is invalid."""


class _SettingsModel(ApiModel):
    model_config = ApiModel.model_config | ConfigDict(strict=False)


class TrajectorySettings(_SettingsModel):
    """The trajectories of each step."""

    budget: Annotated[int, Field(ge=16)]
    """maxResponseTokens of the stage."""
    mean_tokens: Annotated[float, Field(gt=0)] = 4000
    """Mean tokens that the model samples, before the budget cuts them. Not used with `parquet`."""
    prompts: Annotated[int, Field(ge=1)] = 512
    """Prompts per step."""
    samples: Annotated[int, Field(ge=1)] = 32
    """Trajectories per prompt."""
    parquet: Path | None = None
    """Folder of a job's trajectories, `STATE/JOB/stages/STAGE/trajectories`; default: drawn from statistics."""


class PolicySettings(_SettingsModel):
    """One policy to simulate."""

    policy: PolicyName
    """Name of the policy."""
    max_in_flight: Annotated[int, Field(ge=1)] = 1024
    """Largest number of trajectories per engine."""

    @property
    def label(self) -> str:
        """The policy with its limit."""
        return f"{self.policy} ({self.max_in_flight})"

    def make(self) -> SchedulingPolicy:
        """Return a new policy."""
        return make_policy(self.policy, max_in_flight=self.max_in_flight)


def _all_policies() -> list[PolicySettings]:
    """Return every policy, Static with a limit that suits many engines."""
    return [
        PolicySettings(policy="Static", max_in_flight=128),
        PolicySettings(policy="Reserve"),
        PolicySettings(policy="Graded"),
    ]


class SimulationSettings(_SettingsModel):
    """The simulations of one file."""

    engines: Annotated[int, Field(ge=1, le=4096)]
    """Number of engines."""
    hardware: str | Hardware
    """Name of a model of hardware.json, or its fields."""
    trajectories: TrajectorySettings
    """Trajectories of each step."""
    steps: Annotated[int, Field(ge=1)] = 1
    """Steps; `parquet` may have fewer."""
    max_staleness: Annotated[int, Field(ge=0, le=8)] = 0
    """Updates that may be missing in the weights that sample a step. 0: synchronous."""
    update_seconds: Annotated[float, Field(ge=0)] = 0
    """Seconds of the update after each step."""
    seed: int = 0
    """Seed of drawn trajectories."""
    policies: Annotated[list[PolicySettings], Field(min_length=1, default_factory=_all_policies)]
    """Policies to compare."""
    kind: Literal["Simulation"] = "Simulation"
    """Kind of the file."""

    def engine_model(self) -> Hardware:
        """Return the hardware model. Raises SimulationError for an unknown name."""
        if isinstance(self.hardware, Hardware):
            return self.hardware
        try:
            return load_hardware(self.hardware)
        except HardwareError as error:
            raise SimulationError(str(error)) from error

    def workload(self) -> list[list[SimulatedTrajectory]]:
        """Return the trajectories of each step. Raises SimulationError when the Parquet files cannot be used."""
        wanted = self.trajectories
        if wanted.parquet is None:
            statistics = LengthStatistics(wanted.budget, wanted.mean_tokens)
            return [
                draw_step(
                    statistics,
                    prompts=wanted.prompts,
                    samples=wanted.samples,
                    seed=self.seed,
                    first=at * wanted.prompts,
                )
                for at in range(self.steps)
            ]
        steps = [step for step in read_steps(wanted.parquet, budget=wanted.budget) if step][: self.steps]
        if not steps:
            raise SimulationError(f"trajectories.parquet: {wanted.parquet} has no trajectory files")
        return steps


def read_settings(path: Path) -> SimulationSettings:
    """Return the settings of a YAML file. Raises SimulationError; the message names each wrong field."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise SimulationError(f"{path}: contains no settings: `rstar2 simulate --help` has an example")
        return SimulationSettings.model_validate(data)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SimulationError(f"{path}: {reason(error)}") from error
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'file'}: {fault['msg']}" for fault in error.errors())
        raise SimulationError(f"{path}: {faults}") from error
