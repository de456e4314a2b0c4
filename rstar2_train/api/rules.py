"""What a schema cannot say about a job: rules between fields, and warnings about what is probably not meant.

`RULES` at the end lists them; `validate.check` runs them all. Those that the API server can check too are said again
in cel.py. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rstar2_train.api.issue import Issue, duplicates
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.pod_rules import amounts, counts, patches
from rstar2_train.api.sources import schemes
from rstar2_train.api.stages import Stage

MEMBERS = {"SFT": "sft", "GRPO": "grpo", "Filter": "filter", "Evaluate": "evaluate"}
"""Stage type -> name of its member struct."""

RESERVED_ENGINE_ARGS = frozenset(
    {
        *("model", "served-model-name", "host", "port", "uds", "root-path", "api-key", "middleware"),
        *("tensor-parallel-size", "worker-extension-cls", "enable-scale-out", "logprobs-mode"),
    }
)
"""vLLM arguments that the builder sets itself."""


def _stage_shape(job: AgenticRLJob) -> Iterator[Issue]:
    yield from duplicates([stage.name for stage in job.spec.stages], "spec.stages", "a job")
    for index, stage in enumerate(job.spec.stages):
        at = f"spec.stages[{index}]"
        if len(job.metadata.name) + len(stage.name) > 50:
            yield Issue(f"{at}.name", "job name and stage name together are at most 50 characters", stage.name)
        member = MEMBERS[stage.type]
        if getattr(stage, member) is None:
            yield Issue(f"{at}.{member}", f"is required when type is {stage.type}")
        for other in set(MEMBERS.values()) - {member}:
            if getattr(stage, other) is not None:
                yield Issue(f"{at}.{other}", f"only allowed when type is {_type_of(other)}; this stage is {stage.type}")


def _type_of(member: str) -> str:
    return next(kind for kind, name in MEMBERS.items() if name == member)


def _grpo(job: AgenticRLJob) -> Iterator[Issue]:
    for index, stage in _stages(job, "GRPO"):
        at = f"spec.stages[{index}].grpo"
        settings = job.grpo_settings(stage)
        if settings.steps < 1:
            yield Issue(f"{at}.steps", "is required: how many rollout steps the stage has")
        if settings.keep_per_prompt > settings.rollouts_per_prompt:
            yield Issue(
                _where(stage, at, "keep_per_prompt"),
                f"cannot keep more than are sampled: at most rolloutsPerPrompt ({settings.rollouts_per_prompt})",
                settings.keep_per_prompt,
            )
        elif settings.keep_per_prompt == settings.rollouts_per_prompt:
            message = "equals rolloutsPerPrompt, so Resample-on-Correct drops nothing; the paper samples twice as many"
            yield Issue(_where(stage, at, "keep_per_prompt"), message, settings.keep_per_prompt, warning=True)
        if 2 * settings.resample.min_per_class > settings.keep_per_prompt:
            message = f"at most half of keepPerPrompt, which is {settings.keep_per_prompt}"
            yield Issue(_where(stage, at, "resample") + ".minPerClass", message, settings.resample.min_per_class)
        if settings.updates_per_step > settings.prompts_per_step:
            message = f"at most promptsPerStep, which is {settings.prompts_per_step}: an update needs a group"
            yield Issue(_where(stage, at, "updates_per_step"), message, settings.updates_per_step)
        yield from _grpo_data(job, index, at)


def _grpo_data(job: AgenticRLJob, index: int, at: str) -> Iterator[Issue]:
    settings = job.grpo_settings(job.spec.stages[index])
    if settings.data_from is None:
        if settings.data is None:
            yield Issue(f"{at}.data", "give data, or dataFrom with the name of an earlier Filter stage")
        return
    earlier = [stage.name for stage in job.spec.stages[:index] if stage.type == "Filter"]
    if settings.data_from not in earlier:
        allowed = ", ".join(earlier) or "there is none"
        message = f"must name an earlier Filter stage ({allowed})"
        yield Issue(f"{at}.dataFrom", message, settings.data_from)
    own = job.spec.stages[index].grpo
    if own is not None and own.data is not None and own.data_from is not None:
        yield Issue(f"{at}.data", "give data or dataFrom, not both", own.data)


def _filter(job: AgenticRLJob) -> Iterator[Issue]:
    for index, stage in _stages(job, "Filter"):
        assert stage.filter is not None
        if stage.filter.drop_solved > stage.filter.samples:
            message = f"at most samples, which is {stage.filter.samples}; else nothing is ever dropped"
            yield Issue(f"spec.stages[{index}].filter.dropSolved", message, stage.filter.drop_solved)
        users = [job.grpo_settings(s).data_from for s in job.spec.stages[index + 1 :] if s.type == "GRPO"]
        if stage.name not in users:
            message = "no later stage trains on what it keeps; set dataFrom in one"
            yield Issue(f"spec.stages[{index}].name", message, stage.name, warning=True)


def _base_model(job: AgenticRLJob) -> Iterator[Issue]:
    types = [stage.type for stage in job.spec.stages]
    if "GRPO" in types and "SFT" not in types[: types.index("GRPO")] and not job.spec.model.instruct:
        message = (
            "no SFT stage comes before the first GRPO stage: a base model does not know the tool-call form and would "
            "learn nothing; add an SFT stage, or set spec.model.instruct: true for an instruction-tuned model"
        )
        yield Issue("spec.model.source", message, job.spec.model.source, warning=True)


def _accelerator(job: AgenticRLJob) -> Iterator[Issue]:
    vendor, gpus = job.spec.accelerator.vendor, job.spec.trainer.gpus_per_replica
    if vendor == "none" and gpus:
        yield Issue("spec.trainer.gpusPerReplica", "must be 0 when spec.accelerator.vendor is none", gpus)
    if vendor != "none" and not gpus:
        message = f"must be at least 1 when spec.accelerator.vendor is {vendor}; use vendor: none for CPU"
        yield Issue("spec.trainer.gpusPerReplica", message, gpus)
    if vendor == "nvidia" and job.spec.accelerator.resource == "amd.com/gpu":
        yield Issue(
            "spec.accelerator.resource", "is AMD's; with vendor nvidia it is usually nvidia.com/gpu", "amd.com/gpu"
        )


def _storage(job: AgenticRLJob) -> Iterator[Issue]:
    storage = job.spec.storage
    if storage.claim_name and storage.size:
        yield Issue(
            "spec.storage.size", "give claimName (an existing claim) or size (a new one), not both", storage.size
        )


def _engine_args(job: AgenticRLJob) -> Iterator[Issue]:
    for name in job.spec.rollout.engine_args:
        plain = name.lstrip("-").replace("_", "-")
        if plain in RESERVED_ENGINE_ARGS:
            yield Issue(f"spec.rollout.engineArgs.{name}", "is set by the builder and cannot be overridden")


def _judge(job: AgenticRLJob) -> Iterator[Issue]:
    if job.spec.judge.isolation == "none":
        message = "the model's code will run with no sandbox; use gvisor unless you would run that code yourself"
        yield Issue("spec.judge.isolation", message, "none", warning=True)


def _not_yet(job: AgenticRLJob) -> Iterator[Issue]:
    """Fields that are part of the form and that nothing obeys yet: refused rather than ignored."""
    if job.spec.queue_name:
        message = "Kueue is not supported yet: leave it empty, and limit the namespace by a ResourceQuota"
        yield Issue("spec.queueName", message, job.spec.queue_name)
    if job.spec.secret_refs.ca:
        message = "is not supported yet: put the certificate into the image, or mount it by runtimePatches"
        yield Issue("spec.secretRefs.ca", message, job.spec.secret_refs.ca)


def _evaluation(job: AgenticRLJob) -> Iterator[Issue]:
    for index, stage in _stages(job, "Evaluate"):
        assert stage.evaluate is not None
        names = [benchmark.name for benchmark in stage.evaluate.benchmarks]
        yield from duplicates(names, f"spec.stages[{index}].evaluate.benchmarks", "a stage")
    if job.spec.validation is None and not any(stage.type == "Evaluate" for stage in job.spec.stages):
        message = "nothing measures the model: set spec.validation, or add an Evaluate stage"
        yield Issue("spec.validation", message, warning=True)


def _stages(job: AgenticRLJob, kind: str) -> Iterator[tuple[int, Stage]]:
    for index, stage in enumerate(job.spec.stages):
        if stage.type == kind and getattr(stage, MEMBERS[kind]) is not None:
            yield index, stage


def _where(stage: Stage, at: str, name: str) -> str:
    """The field that set a GRPO value: the stage's own, or the job-wide default."""
    assert stage.grpo is not None
    alias = type(stage.grpo).model_fields[name].alias
    return f"{at}.{alias}" if getattr(stage.grpo, name) is not None else f"spec.grpo.{alias} (for stage {stage.name})"


RULES: tuple[Callable[[AgenticRLJob], Iterator[Issue]], ...] = (
    _stage_shape,
    _grpo,
    _filter,
    _base_model,
    _accelerator,
    _storage,
    _engine_args,
    _judge,
    _not_yet,
    patches,
    counts,
    amounts,
    _evaluation,
    schemes,
)
