"""The curriculum: what a stage is, one member struct a type, and the GRPO settings that stages share.

The settings of a GRPO stage are `spec.grpo` (defaults for every stage) with the stage's own `grpo` laid over it:
`resolve_grpo` is the only place where they meet. Numbers are the paper's (arXiv 2508.20722 §4) unless said.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rstar2_train.api.base import ApiModel, Name, Positive, Probability, Text


class Sampling(ApiModel):
    """How responses are sampled, and the limits of one trajectory."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    """Sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling mass; 1 keeps the whole distribution."""
    max_response_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 8192
    """Budget of one trajectory in tokens: everything after the prompt, tool output included."""
    max_turns: Annotated[int, Field(ge=1, le=1000)] = 10
    """Most assistant turns in one trajectory."""


class SFTStage(ApiModel):
    """Supervised fine-tuning on demonstrations; loss on assistant tokens only (paper §4.1)."""

    data: Text
    """Demonstrations: a JSONL or Parquet file of rows `{messages: [...]}`; a row may carry `phase`."""
    epochs: Positive = 3
    """Passes over the data; may be fractional."""
    learning_rate: Positive = 5e-6
    """Peak learning rate of AdamW."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Learning-rate schedule after the warm-up."""
    min_learning_rate_ratio: Probability = 0.0
    """Where the cosine schedule ends, as a share of the peak."""
    warmup_ratio: Probability = 0.04
    """Share of the steps with a linear warm-up."""
    batch_size: Annotated[int, Field(ge=1, le=65536)] = 128
    """Conversations an optimiser step."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.01
    """AdamW weight decay."""
    max_tokens: Annotated[int, Field(ge=16, le=1_000_000)] = 32768
    """Longer conversations are dropped, and counted in the log."""
    shortest_first_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """A curriculum inside SFT: for so many steps, draw only from the rows of the first difficulty (`level` 1)."""
    checkpoint_every_steps: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Steps between two checkpoints of this stage; default: a tenth of its steps."""


class AdvanceTrigger(ApiModel):
    """Triggers that end a GRPO stage before its last step; any one is enough."""

    truncation_below: Probability | None = None
    """Truncated share of rollouts at or below this, and settled, over the window (paper: about 0.10)."""
    all_correct_above: Probability | None = None
    """Share of prompts that every rollout solved above this over the window (paper: 0.70)."""
    window_steps: Annotated[int, Field(ge=1, le=1000)] = 10
    """Steps that a trigger must hold for, and be measured over."""
    min_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Never advance before so many steps."""


class CollapseTrigger(ApiModel):
    """Stops a stage whose reward falls and stays down, and hands on its best checkpoint (paper §4.3)."""

    enabled: bool = True
    """Watch for collapse."""
    drop: Probability = 0.3
    """How far the mean reward must fall below the best window, as a share of it."""
    window_steps: Annotated[int, Field(ge=2, le=1000)] = 10
    """Steps that the fall must last."""


class ResampleSpec(ApiModel):
    """Which rollouts of a group train the policy: Resample-on-Correct (paper §2.2.3)."""

    mode: Literal["paper", "rank", "uniform"] = "paper"
    """paper: positives drawn with weight 1/penalty; rank: the lowest penalties; uniform: plain GRPO."""
    min_per_class: Annotated[int, Field(ge=0, le=64)] = 0
    """Keep at least so many of either class where it has them; the paper's 0 is the default."""


class ImportanceCorrection(ApiModel):
    """Truncated importance sampling between the engine that sampled and the trainer that learns."""

    enabled: bool = False
    """Weigh each token by min(cap, p_trainer / p_engine)."""
    cap: Positive = 2.0
    """Upper bound of the weight."""


class GRPODefaults(ApiModel):
    """Group-relative policy optimisation with Resample-on-Correct: how a GRPO stage samples, selects and learns.

    A stage's own settings lie over spec.grpo, field by field; what neither sets has the default shown.
    """

    # Every field is optional here, so that "not set" and "set to the default" differ; GRPOSettings has the defaults.

    data: Text | None = None
    """Problems: a JSONL or Parquet file of rows `{id, problem, answer}`."""
    data_from: Name | None = None
    """Train on what the named Filter stage kept, in place of `data`."""
    steps: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Rollout steps of the stage (required in a stage)."""
    prompts_per_step: Annotated[int, Field(ge=1, le=65536)] | None = None
    """Problems sampled a step."""
    rollouts_per_prompt: Annotated[int, Field(ge=2, le=1024)] | None = None
    """Rollouts of each problem: 2G of the paper."""
    keep_per_prompt: Annotated[int, Field(ge=2, le=1024)] | None = None
    """Rollouts kept for the update: G of the paper; at most rolloutsPerPrompt."""
    updates_per_step: Annotated[int, Field(ge=1, le=64)] | None = None
    """Optimiser updates a step; the groups are shared out among them."""
    max_prompt_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Problems with a longer prompt are left out, and counted in the log."""
    max_response_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Budget of one trajectory in tokens, tool output included."""
    max_turns: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Most assistant turns in one trajectory."""
    temperature: Annotated[float, Field(gt=0, le=2)] | None = None
    """Sampling temperature."""
    learning_rate: Positive | None = None
    """AdamW learning rate, constant after the warm-up."""
    warmup_steps: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Rollout steps of linear warm-up; none where a stage goes on with the optimiser of the one before."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] | None = None
    """AdamW weight decay."""
    grad_clip: Positive | None = None
    """Largest global gradient norm."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Lower clip range of the probability ratio, 1 - clipLow (eq. 6)."""
    clip_high: Annotated[float, Field(gt=0, le=10)] | None = None
    """Upper clip range of the probability ratio, 1 + clipHigh (eq. 6)."""
    reset_optimizer: bool | None = None
    """Start the stage with a fresh optimiser (paper: at the switch to the hard problems)."""
    resample: ResampleSpec | None = None
    """Which rollouts of a group train the policy: Resample-on-Correct (paper §2.2.3)."""
    importance_correction: ImportanceCorrection | None = None
    """Truncated importance sampling between the engine that sampled and the trainer that learns."""
    advance_when: AdvanceTrigger | None = None
    """Triggers that end the stage before its last step; any one is enough."""
    collapse: CollapseTrigger | None = None
    """Stops a stage whose reward falls and stays down, and hands on its best checkpoint (paper §4.3)."""


class GRPOSettings(ApiModel):
    """What a GRPO stage runs with: every field has a value. The one home of GRPO defaults."""

    data: Text | None = None
    data_from: Name | None = None
    steps: int = 0
    prompts_per_step: int = 512
    rollouts_per_prompt: int = 32
    keep_per_prompt: int = 16
    updates_per_step: int = 1
    max_prompt_tokens: int = 2048
    max_response_tokens: int = 8192
    max_turns: int = 10
    temperature: float = 1.0
    learning_rate: float = 1e-6
    warmup_steps: int = 20
    weight_decay: float = 0.01
    grad_clip: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    reset_optimizer: bool = False
    resample: ResampleSpec = ResampleSpec()
    importance_correction: ImportanceCorrection = ImportanceCorrection()
    advance_when: AdvanceTrigger = AdvanceTrigger()
    collapse: CollapseTrigger = CollapseTrigger()

    @property
    def sampling(self) -> Sampling:
        """The limits under which this stage's rollouts are sampled."""
        return Sampling(
            temperature=self.temperature, max_response_tokens=self.max_response_tokens, max_turns=self.max_turns
        )


class FilterStage(ApiModel):
    """Drops the problems that the current policy always solves (paper §4.3: 8 samples, drop 8 of 8)."""

    data: Text
    """Problems to filter: JSONL or Parquet of `{id, problem, answer}`."""
    samples: Annotated[int, Field(ge=1, le=1024)] = 8
    """Rollouts of each problem."""
    drop_solved: Annotated[int, Field(ge=1, le=1024)] = 8
    """Drop a problem with at least so many correct rollouts."""
    sampling: Sampling = Sampling()
    """Sampling and limits of these rollouts."""


class BenchmarkSpec(ApiModel):
    """One named problem set."""

    name: Name
    """Name in the report and in MLflow."""
    data: Text
    """JSONL or Parquet of `{id, problem, answer}`; rows may carry `slice` and `hard`."""


class EvaluateStage(ApiModel):
    """Measures the final policy (paper §5.1: 16 samples, T = 0.6, 30K tokens, 30 turns)."""

    benchmarks: Annotated[list[BenchmarkSpec], Field(min_length=1, max_length=32)]
    """Problem sets to measure on."""
    samples: Annotated[int, Field(ge=1, le=1024)] = 16
    """Samples of each problem; pass@1 is their mean."""
    sampling: Sampling = Sampling(temperature=0.6, max_response_tokens=30720, max_turns=30)
    """Sampling and limits."""


class Stage(ApiModel):
    """One phase of the job: a name, a type, and the member struct of that type."""

    name: Name
    """Unique in the job; names its pods, its folder and its MLflow run."""
    type: Literal["SFT", "GRPO", "Filter", "Evaluate"]
    """What the stage does; the member of the same name, in lower case, says how."""
    sft: SFTStage | None = None
    """Set when type is SFT: supervised fine-tuning on demonstrations; loss on assistant tokens only (paper §4.1)."""
    grpo: GRPODefaults | None = None
    """Set when type is GRPO: how this stage samples, selects and learns; lies over spec.grpo, field by field
    (resample, collapse and the like whole)."""
    filter: FilterStage | None = None
    """Set when type is Filter: drops the problems that the policy always solves by now (paper §4.3: 8 of 8)."""
    evaluate: EvaluateStage | None = None
    """Set when type is Evaluate: measures the policy (paper §5.1: 16 samples, T = 0.6, 30K tokens, 30 turns)."""
    trainer_replicas: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Overrides spec.trainer.replicas for this stage."""

    @property
    def learns(self) -> bool:
        """Whether it has trainer ranks; the others are driven from one pod without accelerator."""
        return self.type in ("SFT", "GRPO")

    @property
    def needs_engines(self) -> bool:
        """Whether it samples from the policy: all but SFT. The judge and Redis go with the engines."""
        return self.type != "SFT"


def resolve_grpo(defaults: GRPODefaults, stage: GRPODefaults) -> GRPOSettings:
    """The settings a GRPO stage runs with: built-in defaults, then `spec.grpo`, then the stage's own.

    A stage that names its problems, by `data` or by `data_from`, takes neither from `spec.grpo`.
    """
    own, others = _set_fields(stage), _set_fields(defaults)
    if own.keys() & {"data", "data_from"}:
        others = {name: value for name, value in others.items() if name not in ("data", "data_from")}
    return GRPOSettings.model_validate(others | own)


def _set_fields(settings: GRPODefaults) -> dict[str, object]:
    values = {name: getattr(settings, name) for name in type(settings).model_fields}
    return {name: value for name, value in values.items() if value is not None}
