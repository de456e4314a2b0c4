"""The objective of a GRPO stage: its types, the fields of each type, and the defaults of their sources. Pure.

A manifest sets `grpo.objective` (ObjectiveSpec). Objective is its effective form, in which every field has a value.
`grpo_roc/objectives/` has one module per type, with the name of the type in lower case; docs/objectives.md has the
equations.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema

from rstar2_train.api.base import ENDPOINT, VARIABLE, ApiModel, ImageName, Positive, Probability, keys
from rstar2_train.api.roles import EngineArgs, Resources

OBJECTIVES: dict[str, dict[str, float | str | None]] = {
    "GRPO": {"clip_low": 0.2, "clip_high": 0.28, "aggregation": "GroupMean"},
    "DrGRPO": {"clip_low": 0.2, "clip_high": 0.2},
    "DAPO": {"clip_low": 0.2, "clip_high": 0.28, "overlong_buffer_ratio": 0.2},
    "GSPO": {"clip_low": 3e-4, "clip_high": 4e-4},
    "CISPO": {"clip_low": 1.0, "clip_high": 4.0},
    "SAPO": {"positive_temperature": 1.0, "negative_temperature": 1.05},
    "DPPO": {"max_divergence": 0.2, "max_ratio": 20.0},
    "RLOO": {},
    "MaxRL": {},
    "Distillation": {"teacher": None, "teacher_weight": 1.0, "reward_weight": 0.0},
    "Custom": {"source": ""},
}
"""Registry: type -> its own fields, by their Python names, with the defaults of the source. A new type is one line here
and one module in `grpo_roc/objectives`."""
SHARED = {"type", "overlong_buffer_ratio", "overlong_penalty", "truncated"}
"""Fields of every type."""
PARAMETERS = "parameters"
"""Field of type Custom only, in addition to its source."""


def _known(value: str) -> str:
    if value not in OBJECTIVES:
        *names, last = (repr(name) for name in OBJECTIVES)
        raise ValueError(f"allowed: {', '.join(names)} or {last}")
    return value


ObjectiveType = Annotated[
    str, AfterValidator(_known), WithJsonSchema({"type": "string", "enum": list(OBJECTIVES), "maxLength": 32})
]
Aggregation = Literal["GroupMean", "SequenceMean", "TokenMean"]
Truncated = Literal["Train", "Mask"]
Weight = Annotated[float, Field(ge=0)]
Source = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
"""A source that is never empty: an empty one would be the folder of the process."""
Parameters = Annotated[dict[str, float], Field(max_length=32), keys(VARIABLE)]


class Teacher(ApiModel):
    """Policy that a student learns from: of source or of endpoint, never both (docs/objectives.md)."""

    source: Source | None = None
    """Model folder with the tokenizer of the trained model; its architecture and size may be others. The ranks hold it
    in addition to the model, unless spec.teacher is set: then engines of the job serve it."""
    endpoint: Annotated[str, StringConstraints(pattern=ENDPOINT, max_length=256)] | None = None
    """Address of a running vLLM server that serves the teacher, with the tokenizer of the trained model."""
    model: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    """Name under which the server of endpoint serves the teacher. Default: that of its only model."""


class TeacherSpec(ApiModel):
    """The vLLM engines of the teacher: they rate the tokens of each batch, and run only in stages with a teacher."""

    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    """Engines."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """Accelerators per engine."""
    image: ImageName | None = None
    """Container image. Default: rollout.image, else that of the chart's jobImages."""
    resources: Resources = Resources()
    """Requests and limits per pod."""
    engine_args: EngineArgs = {}
    """Further vLLM arguments, by the rules of rollout.engineArgs. max-model-len must have the tokens of the longest
    sequence and one more."""

    @property
    def gpus(self) -> int:
        """Accelerators of all engines."""
        return self.replicas * self.tensor_parallel


class ObjectiveSpec(ApiModel):
    """Objective of the policy update, with the fields of its type (docs/objectives.md)."""

    type: ObjectiveType = "GRPO"
    """Objective. GRPO is the paper's (eqs. 6 and 7)."""
    clip_low: Annotated[float, Field(gt=0, le=1)] | None = None
    """Lower clip range of the probability ratio, 1 - clipLow."""
    clip_high: Annotated[float, Field(gt=0, le=100)] | None = None
    """Upper clip range of the probability ratio, 1 + clipHigh."""
    aggregation: Aggregation | None = None
    """Mean over tokens. GroupMean: token mean of each group, then over groups (eq. 6). SequenceMean: of each sequence,
    then over sequences. TokenMean: of the update."""
    positive_temperature: Positive | None = None
    """Temperature of the gate for advantages above 0."""
    negative_temperature: Positive | None = None
    """Temperature of the gate for other advantages."""
    max_divergence: Annotated[float, Field(gt=0, le=1)] | None = None
    """Change of a token's probability beyond which an update that enlarges it is masked."""
    max_ratio: Positive | None = None
    """Maximum of the probability ratio."""
    teacher: Teacher | None = None
    """Policy that the stage learns from; required if type is Distillation, and only allowed then."""
    teacher_weight: Positive | None = None
    """Weight of the teacher's term: the log-probability of the teacher minus that of the policy."""
    reward_weight: Weight | None = None
    """Weight of the advantage of the reward. 0: the rewards only select rollouts."""
    source: Source | None = None
    """Python file with the functions `advantages` and `loss`. It runs in the trainer's processes without a sandbox."""
    parameters: Parameters | None = None
    """Numbers that the functions read."""
    overlong_buffer_ratio: Probability | None = None
    """Last share of maxResponseTokens in which the reward falls linearly with the length, by overlongPenalty at its
    end. 0: no shaping. Default: 0.2 for DAPO, else 0."""
    overlong_penalty: Annotated[float, Field(ge=0)] | None = None
    """Reward that a response of maxResponseTokens loses; only with an overlongBufferRatio above 0. Default: 1."""
    truncated: Truncated | None = None
    """Whether truncated rollouts train (Train), or only count in the baseline of their group (Mask). Default: Train."""

    def settings(self) -> Objective:
        """Return the effective form: unset fields have the default of the type."""
        return Objective.model_validate(OBJECTIVES[self.type] | set_fields(self))

    def foreign_fields(self) -> list[str]:
        """Return the Python names of the fields that are set but belong to other types."""
        return [name for name in set_fields(self) if name not in fields_of(self.type)]


class Objective(ApiModel):
    """Effective objective of a stage. A field that its type does not have is 0 or empty."""

    type: str = "GRPO"
    clip_low: float = 0.0
    clip_high: float = 0.0
    aggregation: Aggregation = "TokenMean"
    positive_temperature: float = 0.0
    negative_temperature: float = 0.0
    max_divergence: float = 0.0
    max_ratio: float = 0.0
    teacher: Teacher | None = None
    own_engines: bool = False
    """Whether engines of the job serve the teacher (spec.teacher)."""
    teacher_weight: float = 0.0
    reward_weight: float = 0.0
    source: str = ""
    parameters: dict[str, float] = {}
    overlong_buffer_ratio: float = 0.0
    overlong_penalty: float = 1.0
    truncated: Truncated = "Train"

    @property
    def remote_teacher(self) -> Teacher | None:
        """The teacher, if a server rates the tokens; None: the ranks do, or there is no teacher."""
        served = self.own_engines or (self.teacher is not None and self.teacher.endpoint is not None)
        return self.teacher if served else None


class ReferenceKL(ApiModel):
    """KL term to a reference policy, which the ranks hold in addition to the model (docs/objectives.md)."""

    weight: Weight = 0.001
    """Weight of the KL term in the loss. 0: a stage has no term, also if spec.grpo has one. The default is that of
    DeepSeek-R1 (arXiv 2501.12948)."""
    estimator: Literal["K1", "K2", "K3"] = "K3"
    """Estimate per token, of d = log p - log p_reference. K1: d. K2: d^2 / 2. K3: exp(-d) - 1 + d."""
    model: Literal["Initial", "Stage", "Source"] = "Initial"
    """Reference. Initial: spec.model.source. Stage: the policy at the start of the stage. Source: that of source."""
    source: Source | None = None
    """Model folder with the tokenizer of the trained model; required if model is Source, and only allowed then."""


def fields_of(kind: str) -> set[str]:
    """Return the Python names of all fields of a type."""
    return {*SHARED, *OBJECTIVES[kind], *([PARAMETERS] if kind == "Custom" else [])}


def types_with(name: str) -> dict[str, Any]:
    """Return the types that have a field, with its default; none for a field of every type."""
    if name in SHARED:
        return {}
    return {kind: OBJECTIVES[kind].get(name) for kind in OBJECTIVES if name in fields_of(kind)}


def set_fields(settings: ApiModel) -> dict[str, Any]:
    """Return the fields of an overlay that are set: those that are not None."""
    values = {name: getattr(settings, name) for name in type(settings).model_fields}
    return {name: value for name, value in values.items() if value is not None}
