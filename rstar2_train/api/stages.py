"""Models of the curriculum: a stage, one member struct per stage type, and the GRPO settings that stages share.

The settings of a GRPO stage are the built-in defaults, overlaid by `spec.grpo`, overlaid by the stage's own `grpo`;
`resolve_grpo` merges the three. Defaults are the paper's (arXiv 2508.20722 §4) unless a description names another
source.

Hyperparameters are JSON numbers, not Kubernetes quantities: learning rates and ratios need exponents, every training
library reads them as floats, and no controller compares them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rstar2_train.api.base import BY_NAME, ApiModel, Name, Positive, Probability, Text
from rstar2_train.api.lora import LoRASpec
from rstar2_train.api.objectives import Objective, ObjectiveSpec, ReferenceKL, set_fields


class Sampling(ApiModel):
    """Sampling parameters and limits of one trajectory."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    """Sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling probability mass; 1 keeps the whole distribution."""
    max_response_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 8192
    """Maximum tokens of one trajectory after the prompt, tool output included."""
    max_turns: Annotated[int, Field(ge=1, le=1000)] = 10
    """Maximum assistant turns of one trajectory."""


class SFTStage(ApiModel):
    """Supervised fine-tuning on demonstrations; loss on assistant tokens only (paper §4.1)."""

    data: Text
    """Demonstrations: a file (JSONL, JSON, Parquet, Arrow) of rows `{messages: [...]}`; a row may have a `level`."""
    epochs: Positive = 3
    """Passes over the data; may be fractional."""
    learning_rate: Positive = 5e-6
    """Peak learning rate of AdamW."""
    schedule: Literal["Cosine", "Constant"] = "Cosine"
    """Learning-rate schedule after the warm-up."""
    min_learning_rate_ratio: Probability = 0.0
    """Final learning rate of the Cosine schedule, as a share of the peak."""
    warmup_ratio: Probability = 0.04
    """Share of the steps with a linear warm-up."""
    batch_size: Annotated[int, Field(ge=1, le=65536)] = 128
    """Conversations per optimiser step."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.01
    """AdamW weight decay."""
    max_tokens: Annotated[int, Field(ge=16, le=1_000_000)] = 32768
    """Maximum tokens of a conversation. Longer conversations are dropped."""
    shortest_first_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Initial steps that draw only from rows of the first difficulty (`level` 1)."""
    checkpoint_every_steps: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Steps between two checkpoints of this stage. Default: a tenth of the stage's steps."""
    held_out_rows: Annotated[int, Field(ge=0, le=65536)] | None = None
    """Conversations that are not trained on; their loss is measured at each checkpoint. Default: 1 % of the data, at
    most 512; none below 20,000 rows."""


class AdvanceTrigger(ApiModel):
    """Triggers that complete a GRPO stage before its last step; one of them is enough."""

    truncation_below: Probability | None = None
    """Maximum share of truncated rollouts over the window, once the share is stable (paper: about 0.10)."""
    all_correct_above: Probability | None = None
    """Minimum share of prompts that every rollout solves, over the window (paper: 0.70)."""
    window_steps: Annotated[int, Field(ge=1, le=1000)] = 10
    """Steps over which a trigger is measured and must hold."""
    min_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Steps before which no trigger applies."""


class CollapseTrigger(ApiModel):
    """Trigger that completes a GRPO stage with its best checkpoint after a lasting fall of the reward (paper §4.3)."""

    enabled: bool = True
    """Whether the trigger is active."""
    drop: Probability = 0.3
    """Fall of the mean reward below the best window, as a share of that window's reward."""
    window_steps: Annotated[int, Field(ge=2, le=1000)] = 10
    """Steps that the fall must last."""
    min_effective_sample_size: Probability = 0.3
    """Minimum effective sample size of the importance weights during windowSteps, as a share of the tokens, if
    maxStaleness is above 0."""


class ResampleSpec(ApiModel):
    """Selection of the rollouts of a group that train the policy: Resample-on-Correct (paper §2.2.3)."""

    mode: Literal["Paper", "Rank", "Uniform"] = "Paper"
    """Paper: successes are drawn with weight 1/penalty. Rank: successes with the lowest penalties. Uniform: plain
    GRPO."""
    min_per_class: Annotated[int, Field(ge=0, le=64)] = 0
    """Minimum successes, and failures, to keep if the group has them."""


class ImportanceCorrection(ApiModel):
    """Truncated importance sampling for the gap between engine and trainer."""

    enabled: bool | None = None
    """Whether each token has the weight min(cap, p_trainer / p_engine). Default: true if maxStaleness is above 0."""
    cap: Positive = 2.0
    """Maximum weight."""
    max_sequence_gap: Positive | None = None
    """Maximum mean |log p_trainer - log p_engine| of a trained rollout. Default: no maximum."""
    sequence_gap_action: Literal["Mask", "Drop"] = "Mask"
    """Whether a rollout above maxSequenceGap stays in the denominators (Mask) or not (Drop)."""

    @property
    def drops_sequences(self) -> bool:
        """Whether the denominators depend on the trainer's probabilities at the start of the step."""
        return self.max_sequence_gap is not None and self.sequence_gap_action == "Drop"


class GRPODefaults(ApiModel):
    """Group-relative policy optimisation with Resample-on-Correct: sampling, selection and training of a GRPO stage.

    A stage's own fields override spec.grpo; a field that neither sets has the default in its description.
    """

    # Every field is optional, so that an unset field differs from one set to the default: GRPOSettings has the
    # defaults. This overlay is the one exception to the rule that the stored object shows every default.

    data: Text | None = None
    """Problems: a JSONL, JSON, CSV, Parquet or Arrow file of rows `{problem, answer}`."""
    data_from: Name | None = None
    """Earlier Filter stage whose kept problems are the training data, instead of `data`."""
    steps: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Rollout steps of the stage; required in a stage."""
    prompts_per_step: Annotated[int, Field(ge=1, le=65536)] | None = None
    """Problems per step."""
    rollouts_per_prompt: Annotated[int, Field(ge=2, le=1024)] | None = None
    """Rollouts per problem: 2G of the paper."""
    keep_per_prompt: Annotated[int, Field(ge=2, le=1024)] | None = None
    """Rollouts per problem that are kept for the update: G of the paper; at most rolloutsPerPrompt."""
    updates_per_step: Annotated[int, Field(ge=1, le=64)] | None = None
    """Optimiser updates per step, each on an equal share of the groups."""
    max_prompt_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Maximum tokens of a prompt. Problems with longer prompts are skipped."""
    max_response_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Maximum tokens of one trajectory after the prompt, tool output included."""
    max_turns: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Maximum assistant turns of one trajectory."""
    max_staleness: Annotated[int, Field(ge=0, le=16)] | None = None
    """Maximum steps between the weights that sample a token and those that it trains. 0: sampling stops meanwhile."""
    dynamic_sampling: bool | None = None
    """Whether to sample up to 4 x promptsPerStep problems, until promptsPerStep groups can train."""
    temperature: Annotated[float, Field(gt=0, le=2)] | None = None
    """Sampling temperature."""
    learning_rate: Positive | None = None
    """AdamW learning rate, constant after the warm-up. Default: 1e-6; with LoRA 1e-5."""
    warmup_steps: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Rollout steps of linear warm-up; none if the stage keeps the previous optimiser."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] | None = None
    """AdamW weight decay."""
    grad_clip: Positive | None = None
    """Maximum global gradient norm."""
    objective: ObjectiveSpec | None = None
    """Objective of the policy update, with the fields of its type (docs/objectives.md). Default: the paper's."""
    reference_kl: ReferenceKL | None = None
    """KL term to a reference policy. Default: none, as in the paper."""
    reset_optimizer: bool | None = None
    """Whether the stage starts with a new optimiser state (paper: for the hard problems)."""
    resample: ResampleSpec | None = None
    """Selection of the rollouts of a group that train the policy: Resample-on-Correct (paper §2.2.3)."""
    importance_correction: ImportanceCorrection | None = None
    """Truncated importance sampling for the gap between engine and trainer."""
    router_replay: bool | None = None
    """Whether a mixture of experts is trained with the experts that the engines chose. Default: true. Without effect
    for dense models."""
    advance_when: AdvanceTrigger | None = None
    """Triggers that complete the stage before its last step; one of them is enough."""
    collapse: CollapseTrigger | None = None
    """Trigger that completes the stage with its best checkpoint after a lasting fall of the reward (paper §4.3)."""


class GRPOSettings(ApiModel):
    """Effective settings of a GRPO stage: every field has a value. The only place with GRPO defaults."""

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
    max_staleness: int = 0
    dynamic_sampling: bool = False
    temperature: float = 1.0
    learning_rate: float = 1e-6
    warmup_steps: int = 20
    weight_decay: float = 0.01
    grad_clip: float = 1.0
    objective: Objective = ObjectiveSpec().settings()
    reference_kl: ReferenceKL | None = None
    reset_optimizer: bool = False
    resample: ResampleSpec = ResampleSpec()
    importance_correction: ImportanceCorrection = ImportanceCorrection()
    router_replay: bool = True
    advance_when: AdvanceTrigger = AdvanceTrigger()
    collapse: CollapseTrigger = CollapseTrigger()

    @property
    def sampling(self) -> Sampling:
        """Sampling parameters and limits of the stage's rollouts."""
        return Sampling(
            temperature=self.temperature, max_response_tokens=self.max_response_tokens, max_turns=self.max_turns
        )

    @property
    def has_reference(self) -> bool:
        """Whether the ranks hold a reference policy: the teacher, or that of the KL term."""
        held = self.objective.teacher if self.objective.remote_teacher is None else None
        return self.reference_kl is not None or held is not None

    @property
    def correction_cap(self) -> float | None:
        """Cap of the truncated importance correction; None if it is off."""
        correction = self.importance_correction
        enabled = self.max_staleness > 0 if correction.enabled is None else correction.enabled
        return correction.cap if enabled else None


class FilterStage(ApiModel):
    """Removal of problems that the current policy always solves (paper §4.3: 8 of 8 samples)."""

    data: Text
    """Problems to filter: a JSONL, JSON, CSV, Parquet or Arrow file of rows `{problem, answer}`."""
    samples: Annotated[int, Field(ge=1, le=1024)] = 8
    """Rollouts per problem."""
    drop_solved: Annotated[int, Field(ge=1, le=1024)] = 8
    """Number of correct rollouts at which a problem is dropped."""
    sampling: Sampling = Sampling()
    """Sampling parameters and limits of the rollouts."""


class BenchmarkSpec(ApiModel):
    """A named problem set."""

    name: Name
    """Name in the report and in MLflow; unique in the stage."""
    data: Text
    """Problems: a JSONL, JSON, CSV, Parquet or Arrow file of rows `{problem, answer}`, with optional `slice`, `hard`.
    """


class EvaluateStage(ApiModel):
    """Measurement of the policy (paper §5.1: 16 samples, T = 0.6, 30K tokens, 30 turns)."""

    benchmarks: Annotated[list[BenchmarkSpec], Field(min_length=1, max_length=32), BY_NAME]
    """Problem sets."""
    samples: Annotated[int, Field(ge=1, le=1024)] = 16
    """Samples per problem; pass@1 is their mean."""
    sampling: Sampling = Sampling(temperature=0.6, max_response_tokens=30720, max_turns=30)
    """Sampling parameters and limits."""


class StageTrainer(ApiModel):
    """Settings of spec.trainer that one stage overrides."""

    replicas: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Pods of this stage. Default: spec.trainer.replicas."""
    lora: LoRASpec | None = None
    """Train an adapter in this stage. Default: spec.trainer.lora."""


class Stage(ApiModel):
    """One stage of the curriculum: a name, a type, and the member struct of that type."""

    name: Name
    """Name of the stage, its pods, its directory and its MLflow run; unique in the job."""
    type: Literal["SFT", "GRPO", "Filter", "Evaluate"]
    """Kind of the stage. It selects the member of the same name in lower case."""
    sft: SFTStage | None = None
    """Required if type is SFT: supervised fine-tuning on demonstrations; loss on assistant tokens (paper §4.1)."""
    grpo: GRPODefaults | None = None
    """Required if type is GRPO: sampling, selection and training of this stage. Its fields override spec.grpo; a
    member object such as objective overrides as a whole: {} has all defaults, referenceKl {weight: 0} is no term."""
    filter: FilterStage | None = None
    """Required if type is Filter: removal of problems that the policy always solves (paper §4.3: 8 of 8)."""
    evaluate: EvaluateStage | None = None
    """Required if type is Evaluate: measurement of the policy (paper §5.1: 16 samples, T = 0.6, 30K tokens)."""
    trainer: StageTrainer | None = None
    """Settings of spec.trainer that this stage overrides."""

    @property
    def learns(self) -> bool:
        """Whether the stage has trainer ranks. Other stages run on one pod without an accelerator."""
        return self.type in ("SFT", "GRPO")

    @property
    def needs_engines(self) -> bool:
        """Whether the stage samples from the policy, and so needs engines, judge and Redis: every type but SFT."""
        return self.type != "SFT"


def resolve_grpo(defaults: GRPODefaults, stage: GRPODefaults) -> GRPOSettings:
    """Return the effective settings of a GRPO stage: built-in defaults, then `spec.grpo`, then the stage's own.

    A stage that sets `data` or `data_from` inherits neither of them from `spec.grpo`. A KL term of weight 0 is none.
    """
    own, inherited = set_fields(stage), set_fields(defaults)
    if own.keys() & {"data", "data_from"}:
        inherited = {name: value for name, value in inherited.items() if name not in ("data", "data_from")}
    values = inherited | own
    if "objective" in values:
        values["objective"] = values["objective"].settings()
    if "reference_kl" in values and not values["reference_kl"].weight:
        del values["reference_kl"]
    return GRPOSettings.model_validate(values)
