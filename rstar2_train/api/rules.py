"""Rules that a schema cannot express: relations between fields, and warnings about probable mistakes.

`RULES` at the end lists them; `validation.check` runs them all. cel.py has the CEL form of every rule that the API
server can check too. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest

from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from rstar2_train.api.base import ApiModel, ListType, amount
from rstar2_train.api.engine_args import engine_args
from rstar2_train.api.grpo_rules import null_fields, unused_settings
from rstar2_train.api.issue import Issue
from rstar2_train.api.job import ROLE_REASONS, AgenticRLJob
from rstar2_train.api.lora_rules import lora
from rstar2_train.api.objective_rules import (
    objectives,
    reference_kl,
    served_teachers,
    source_field,
    unused_engines,
    unused_token,
)
from rstar2_train.api.pod_rules import amounts, device_counts, patches
from rstar2_train.api.reward_rules import rewards
from rstar2_train.api.roles import BUILTIN_TOOLS, GPU_RESOURCES, NOTEBOOK
from rstar2_train.api.sources import WITH_URL, schemes, sources
from rstar2_train.api.stage_rules import unused_in_stages
from rstar2_train.api.stages import Stage
from rstar2_train.api.storage import StorageSpec
from rstar2_train.api.tasks import ToolSpec
from rstar2_train.api.weight_rules import unused_weights

MEMBERS = {"SFT": "sft", "GRPO": "grpo", "Filter": "filter", "Evaluate": "evaluate"}
"""Stage type -> name of its member struct."""

JOB_AND_STAGE_LENGTH = 50
"""Maximum characters of job name and stage name together: `<job>-<stage>-<attempt>` must fit into a DNS label."""
MEMORY_LIMITS = ("32Mi", "1Ti")
OUTPUT_LIMITS = ("256", "8Mi")
"""Minimum and maximum of spec.judge.limits.memory and .output."""

NEVER_MATCHES = (
    f"never matches: pods of the roles have only {', '.join(ROLE_REASONS)}; for the outcome of an attempt, or a lost "
    "pod of it, use the role trainer"
)


def _repeated_entries(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield the repeated entries of sets and keys of maps, as the API server does by x-kubernetes-list-type."""
    yield from _repeated(job.spec, "spec")


def _repeated(model: ApiModel, at: str) -> Iterator[Issue]:
    for name, field in type(model).model_fields.items():
        value, path = getattr(model, name), f"{at}.{field.alias}"
        if isinstance(value, ApiModel):
            yield from _repeated(value, path)
        elif isinstance(value, list):
            yield from _repeated_in(value, path, field)
            for index, entry in enumerate(value):
                if isinstance(entry, ApiModel):
                    yield from _repeated(entry, f"{path}[{index}]")


def _repeated_in(entries: list[object], at: str, field: FieldInfo) -> Iterator[Issue]:
    kind = next((item for item in field.metadata if isinstance(item, ListType)), None)
    if kind is None or kind.kind == "atomic":
        return
    seen = []
    for index, entry in enumerate(entries):
        key = entry.model_dump()[kind.key] if isinstance(entry, ApiModel) else entry
        if key in seen:
            suffix = f".{kind.key}" if kind.key else ""
            rule = f"each {kind.key} may occur only once in {at}" if kind.key else f"may occur only once in {at}"
            yield Issue(f"{at}[{index}]{suffix}", f"duplicate; {rule}", key)
        seen.append(key)


def _stage_shape(job: AgenticRLJob) -> Iterator[Issue]:
    for index, stage in enumerate(job.spec.stages):
        at = f"spec.stages[{index}]"
        if len(job.metadata.name) + len(stage.name) > JOB_AND_STAGE_LENGTH:
            message = f"job name and stage name together may have at most {JOB_AND_STAGE_LENGTH} characters"
            yield Issue(f"{at}.name", message, stage.name)
        member = MEMBERS[stage.type]
        if getattr(stage, member) is None:
            yield Issue(f"{at}.{member}", f"is required if type is {stage.type}")
        for other in set(MEMBERS.values()) - {member}:
            if getattr(stage, other) is not None:
                message = f"is only allowed if type is {_type_of(other)}; the type of this stage is {stage.type}"
                yield Issue(f"{at}.{other}", message)


def _type_of(member: str) -> str:
    return next(kind for kind, name in MEMBERS.items() if name == member)


def _grpo(job: AgenticRLJob) -> Iterator[Issue]:
    for index, stage in _stages(job, "GRPO"):
        at = f"spec.stages[{index}].grpo"
        settings = job.grpo_settings(stage)
        if settings.steps < 1:
            yield Issue(f"{at}.steps", "is required: the number of rollout steps of the stage")
        if settings.keep_per_prompt > settings.rollouts_per_prompt:
            message = f"must be at most rolloutsPerPrompt, which is {settings.rollouts_per_prompt}"
            yield Issue(source_field(stage, at, "keep_per_prompt"), message, settings.keep_per_prompt)
        elif settings.keep_per_prompt == settings.rollouts_per_prompt:
            message = "equals rolloutsPerPrompt, so Resample-on-Correct drops nothing; the paper samples twice as many"
            yield Issue(source_field(stage, at, "keep_per_prompt"), message, settings.keep_per_prompt, warning=True)
        if 2 * settings.resample.min_per_class > settings.keep_per_prompt:
            message = f"must be at most half of keepPerPrompt, which is {settings.keep_per_prompt}"
            field = source_field(stage, at, "resample", ".minPerClass")
            yield Issue(field, message, settings.resample.min_per_class)
        correction = settings.importance_correction
        if correction.sequence_gap_action == "Drop" and correction.max_sequence_gap is None:
            message = "has no effect without maxSequenceGap, so no rollout is dropped; set maxSequenceGap, or use Mask"
            field = source_field(stage, at, "importance_correction", ".sequenceGapAction")
            yield Issue(field, message, correction.sequence_gap_action)
        if settings.updates_per_step > settings.prompts_per_step:
            message = f"must be at most promptsPerStep, which is {settings.prompts_per_step}: an update needs a group"
            yield Issue(source_field(stage, at, "updates_per_step"), message, settings.updates_per_step)
        yield from _grpo_data(job, index, at)


def _grpo_data(job: AgenticRLJob, index: int, at: str) -> Iterator[Issue]:
    settings = job.grpo_settings(job.spec.stages[index])
    if settings.data_from is None:
        if settings.data is None:
            yield Issue(f"{at}.data", "is required, unless dataFrom names an earlier Filter stage")
        return
    earlier = [stage.name for stage in job.spec.stages[:index] if stage.type == "Filter"]
    if settings.data_from not in earlier:
        message = f"must name an earlier Filter stage; this job has {', '.join(earlier) or 'none'}"
        yield Issue(f"{at}.dataFrom", message, settings.data_from)
    own = job.spec.stages[index].grpo
    if own is not None and own.data is not None and own.data_from is not None:
        yield Issue(f"{at}.data", "must not be set together with dataFrom", own.data)


def _filter(job: AgenticRLJob) -> Iterator[Issue]:
    for index, stage in _stages(job, "Filter"):
        assert stage.filter is not None
        if stage.filter.drop_solved > stage.filter.samples:
            message = f"must be at most samples, which is {stage.filter.samples}; otherwise no problem is dropped"
            yield Issue(f"spec.stages[{index}].filter.dropSolved", message, stage.filter.drop_solved)
        consumers = [job.grpo_settings(s).data_from for s in job.spec.stages[index + 1 :] if s.type == "GRPO"]
        if stage.name not in consumers:
            message = "no later GRPO stage uses its problems; set dataFrom in one"
            yield Issue(f"spec.stages[{index}].name", message, stage.name, warning=True)


def _base_model(job: AgenticRLJob) -> Iterator[Issue]:
    types = [stage.type for stage in job.spec.stages]
    if job.spec.model.assume_instruction_tuned or "GRPO" not in types or "SFT" in types[: types.index("GRPO")]:
        return
    message = (
        "there is no SFT stage before the first GRPO stage, and a base model without SFT learns nothing because it "
        "does not know the tool-call format; add an SFT stage, or set spec.model.assumeInstructionTuned: true for an "
        "instruction-tuned model"
    )
    yield Issue("spec.model.source", message, job.spec.model.source, warning=True)


def _accelerator(job: AgenticRLJob) -> Iterator[Issue]:
    accelerator, gpus = job.spec.accelerator, job.spec.trainer.gpus_per_replica
    if accelerator.vendor == "None" and gpus:
        yield Issue("spec.trainer.gpusPerReplica", "must be 0 if spec.accelerator.vendor is None", gpus)
    if accelerator.vendor == "None" and job.spec.trainer.offload:
        message = "has no effect if spec.accelerator.vendor is None: a CPU computes in the memory of the host"
        yield Issue("spec.trainer.offload", message, True, warning=True)
    if accelerator.vendor != "None" and not gpus:
        message = f"must be at least 1 if spec.accelerator.vendor is {accelerator.vendor}; use vendor: None for CPU"
        yield Issue("spec.trainer.gpusPerReplica", message, gpus)
    for field in ("resource", "claim_templates"):
        if accelerator.vendor == "None" and (value := getattr(accelerator, field)) is not None:
            at = f"spec.accelerator.{type(accelerator).model_fields[field].alias}"
            yield Issue(at, "must not be set if vendor is None", value if isinstance(value, str) else None)
    if accelerator.vendor != "None" and accelerator.resource is None and accelerator.claim_templates is None:
        usual = GPU_RESOURCES[accelerator.vendor]
        message = f"is required if vendor is {accelerator.vendor}: the device plugin's resource, usually {usual}, or "
        yield Issue("spec.accelerator.resource", f"{message}claimTemplates with a DRA driver")
    if accelerator.resource is not None and accelerator.claim_templates is not None:
        message = "must not be set together with resource: a cluster has a device plugin or a DRA driver"
        yield Issue("spec.accelerator.claimTemplates", message)
    if accelerator.claim_templates is not None and accelerator.claim_templates.rollout is None and _samples(job):
        yield Issue("spec.accelerator.claimTemplates.rollout", "is required, because a stage needs engines")
    if accelerator.claim_templates is not None and accelerator.claim_templates.teacher is None and job.spec.teacher:
        yield Issue("spec.accelerator.claimTemplates.teacher", "is required, because spec.teacher needs devices")
    if accelerator.vendor == "NVIDIA" and accelerator.resource == GPU_RESOURCES["AMD"]:
        message = f"must be that of NVIDIA's device plugin if vendor is NVIDIA, usually {GPU_RESOURCES['NVIDIA']}"
        yield Issue("spec.accelerator.resource", message, accelerator.resource)


def _samples(job: AgenticRLJob) -> bool:
    """Return whether any stage needs engines."""
    return any(stage.needs_engines for stage in job.spec.stages)


def _without_requests(job: AgenticRLJob) -> Iterator[Issue]:
    """Warn of pods on accelerators without requests of CPU and memory: they are the first to be evicted."""
    spec = job.spec
    patched = {role for patch in spec.runtime_patches if patch.resources is not None for role in patch.roles}
    for role, resources, used in (
        ("trainer", spec.trainer.resources, any(stage.learns for stage in spec.stages)),
        ("rollout", spec.rollout.resources, _samples(job)),
        *([("teacher", spec.teacher.resources, True)] if spec.teacher else []),
    ):
        set_amounts = {"cpu", "memory"} & (resources.requests.keys() | resources.limits.keys())
        if spec.accelerator.vendor != "None" and used and role not in patched and not set_amounts:
            message = (
                "requests neither cpu nor memory, so the pods have the QoS class BestEffort: a node that lacks memory "
                "evicts them first, and such an eviction counts as a restart; set both"
            )
            yield Issue(f"spec.{role}.resources.requests", message, warning=True)


def _storage(job: AgenticRLJob) -> Iterator[Issue]:
    storage = job.spec.storage
    if storage.claim_name and storage.size:
        message = "must not be set together with claimName: size is for the claim that the operator creates"
        yield Issue("spec.storage.size", message, storage.size)
    for name in ("claim_name", "storage_class_name", "access_modes", "reclaim_policy"):
        if storage.url and getattr(storage, name) != StorageSpec.model_fields[name].default:
            yield Issue(f"spec.storage.{to_camel(name)}", WITH_URL, getattr(storage, name))
    if any(value.startswith("s3://") for value in [storage.url or "", *(source.value for source in sources(job))]):
        return
    for name in ("endpoint_url", "region", "addressing"):
        if getattr(storage, name) != StorageSpec.model_fields[name].default:
            message = "has no effect: neither url nor a source of the job is an s3:// URL"
            yield Issue(f"spec.storage.{to_camel(name)}", message, getattr(storage, name), warning=True)


def _judge(job: AgenticRLJob) -> Iterator[Issue]:
    limits = job.spec.judge.limits
    for name, value, (low, high) in (
        ("memory", limits.memory, MEMORY_LIMITS),
        ("output", limits.output, OUTPUT_LIMITS),
    ):
        if not amount(low) <= amount(value) <= amount(high):
            yield Issue(f"spec.judge.limits.{name}", f"must be between {low} and {high}", value)
    if job.spec.executor.isolation == "None":
        message = "the model's code runs without a sandbox; use GVisor unless you would run that code yourself"
        yield Issue("spec.executor.isolation", message, "None", warning=True)


def _tools(job: AgenticRLJob) -> Iterator[Issue]:
    most = job.spec.judge.limits.memory
    for index, tool in enumerate(job.spec.tools):
        at = f"spec.tools[{index}]"
        if tool.name == NOTEBOOK:
            message = "is selected by spec.rollout.tool, as the only tool of a job: each call is a cell of its session"
            yield Issue(f"{at}.name", message, tool.name)
        elif tool.server is not None:
            yield from _server_tool(job, tool, at)
        elif tool.source is None and tool.name not in BUILTIN_TOOLS:
            message = f"is required: {tool.name!r} is not a built-in tool ({BUILTIN_TOOLS[0]}) and has no server"
            yield Issue(f"{at}.source", message)
        elif tool.source is not None and tool.name in BUILTIN_TOOLS:
            yield Issue(f"{at}.name", "is the name of a built-in tool; rename the function", tool.name)
        if tool.memory is not None and not amount(MEMORY_LIMITS[0]) <= amount(tool.memory) <= amount(most):
            message = f"must be between {MEMORY_LIMITS[0]} and spec.judge.limits.memory, which is {most}"
            yield Issue(f"{at}.memory", message, tool.memory)
    prompt = job.spec.model.system_prompt
    if job.spec.tools and prompt is not None and "{tools}" not in prompt:
        message = "does not contain {tools}, so the model does not read the signatures of spec.tools; add it at the end"
        yield Issue("spec.model.systemPrompt", message, warning=True)


def _server_tool(job: AgenticRLJob, tool: ToolSpec, at: str) -> Iterator[Issue]:
    servers = [server.name for server in job.spec.mcp_servers]
    if tool.server not in servers:
        message = f"must name an entry of spec.mcpServers; this job has {', '.join(servers) or 'none'}"
        yield Issue(f"{at}.server", message, tool.server)
    for field, value in (("source", tool.source), ("memory", tool.memory)):
        if value is not None:
            yield Issue(f"{at}.{field}", "must not be set together with server, which runs the tool", value)


def _mcp_servers(job: AgenticRLJob) -> Iterator[Issue]:
    for index, server in enumerate(job.spec.mcp_servers):
        at = f"spec.mcpServers[{index}]"
        if (server.url is None) == (not server.command):
            yield Issue(f"{at}.url", "set either url or command: a server is reached in one way")
        elif server.url is not None and not server.url.startswith(("http://", "https://")):
            yield Issue(f"{at}.url", "must start with http:// or https://", server.url)
        if server.command and server.secret_ref is not None:
            yield Issue(f"{at}.secretRef", "is only allowed with url: a server on stdio has no bearer token")
        if not any(tool.server == server.name for tool in job.spec.tools):
            message = "no entry of spec.tools names this server, so the model has none of its tools; list them there"
            yield Issue(f"{at}.name", message, server.name, warning=True)


def _workers(job: AgenticRLJob) -> Iterator[Issue]:
    workers = job.spec.rollout.workers
    if workers not in (None, 1) and (job.spec.agent is not None or job.spec.environments):
        message = "has no effect with spec.agent and spec.environments: one process counts the episodes; remove it"
        yield Issue("spec.rollout.workers", message, workers, warning=True)


def _environments(job: AgenticRLJob) -> Iterator[Issue]:
    for index, spec in enumerate(job.spec.environments):
        at = f"spec.environments[{index}]"
        if spec.url is None and not spec.image and not spec.command:
            yield Issue(f"{at}.command", "set command (or image in a cluster), or the url of a running server")
        if spec.url is not None and not spec.url.startswith(("http://", "https://")):
            yield Issue(f"{at}.url", "must start with http:// or https://", spec.url)
        for field, value in (("image", spec.image), ("command", spec.command)):
            if spec.url is not None and value:
                yield Issue(f"{at}.{field}", "must not be set together with url: nothing is started then", value)


def _agent(job: AgenticRLJob) -> Iterator[Issue]:
    if job.spec.agent is None:
        return
    for field in ("tools", "mcp_servers", "environments", "rewards"):
        if getattr(job.spec, field):
            message = "must not be set together with agent: its program has the tools, and posts the reward"
            yield Issue(f"spec.{type(job.spec).model_fields[field].alias}", message)


def _failure_rules(job: AgenticRLJob) -> Iterator[Issue]:
    for index, rule in enumerate(job.spec.failure_policy.rules):
        if not rule.on_exit_codes and not rule.on_reasons and not rule.on_pod_conditions:
            message = "must set onExitCodes, onReasons or onPodConditions: without them the rule matches nothing"
            yield Issue(f"spec.failurePolicy.rules[{index}]", message)
        for reason in () if "trainer" in rule.roles else rule.on_reasons:
            if reason not in ROLE_REASONS:
                yield Issue(f"spec.failurePolicy.rules[{index}].onReasons", NEVER_MATCHES, reason)


def _evaluation(job: AgenticRLJob) -> Iterator[Issue]:
    if job.spec.validation is None and not any(stage.type == "Evaluate" for stage in job.spec.stages):
        message = "is not set and there is no Evaluate stage, so nothing measures the model; add one of them"
        yield Issue("spec.validation", message, warning=True)
    if job.spec.validation is None:
        return
    for stage, following in zip_longest(job.spec.stages, job.spec.stages[1:]):
        if not stage.needs_engines and (following is None or not following.needs_engines):
            message = (
                f"does not measure the model of stage {stage.name}: an SFT stage has no engines, and no stage with "
                "engines follows it directly; add an Evaluate stage after it"
            )
            yield Issue("spec.validation", message, warning=True)


def _stages(job: AgenticRLJob, kind: str) -> Iterator[tuple[int, Stage]]:
    for index, stage in enumerate(job.spec.stages):
        if stage.type == kind and getattr(stage, MEMBERS[kind]) is not None:
            yield index, stage


RULES: tuple[Callable[[AgenticRLJob], Iterator[Issue]], ...] = (
    _repeated_entries,
    _stage_shape,
    _grpo,
    null_fields,
    unused_settings,
    unused_in_stages,
    objectives,
    reference_kl,
    served_teachers,
    unused_engines,
    unused_token,
    lora,
    unused_weights,
    _filter,
    _base_model,
    _accelerator,
    _without_requests,
    _storage,
    engine_args,
    _judge,
    _tools,
    _mcp_servers,
    _environments,
    _workers,
    _agent,
    rewards,
    _failure_rules,
    patches,
    device_counts,
    amounts,
    _evaluation,
    schemes,
)
