"""When a change of each manifest field of a running job takes effect: one column of docs/manifest.md. Pure.

A test compares the table with the builders of the operator, another with the transition rules of the API.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

NOW = "immediately"
ENGINE = "when an engine starts"
ATTEMPT = "next attempt"
STAGE = "next attempt of the stage"
FETCH = "next preparation"
NEVER = "immutable"
LOCAL = "one machine only"

LEGEND = {
    NOW: "The operator acts on the change when it sees it. No pod is replaced.",
    "immediately, replaces PODS": "The pods of the named roles are replaced, a few at a time. "
    "Calls and rollouts in flight are repeated. `trainer: next attempt`: the trainer's pods get it then. "
    "A shorter sequence replaces ready engines with the next attempt only.",
    ENGINE: "Suspend and resume the job, or run `kubectl rollout restart deployment/NAME-rollout`; "
    "`NAME-teacher` for the engines of the teacher.",
    ATTEMPT: "With the next stage, after a restart, or after you suspend and resume the job.",
    STAGE: "A stage that has not started uses the new value. The running stage uses it from its next attempt. "
    "A stage that has succeeded does not run again. A longer prompt or response replaces the engines immediately, "
    "a new teacher or a length those of the teacher.",
    FETCH: "The value is read while the storage is prepared: before the first stage, and again before the next attempt "
    "if downloaded or generated sources are added or changed. With `storage.url`, the trainer also uses it from its "
    "next attempt, and another Secret of proxy or bucket, or another `secretRefs.ca`, replaces the engines "
    "immediately.",
    NEVER: "The API server rejects the change. Create a job with another name.",
    LOCAL: "The field is for `rstar2 run`. A cluster rejects a job that sets it.",
}
"""Value of the column -> explanation. PODS stands for the roles."""


def replaces(*roles: str, and_attempt: bool = False) -> str:
    """The value for a field that changes the pods of `roles`; `and_attempt`: the trainer's too, at its next attempt."""
    later = f"; trainer: {ATTEMPT}" if and_attempt else ""
    return f"{NOW}, replaces {', '.join(roles)}{later}"


LENGTHS = ("maxPromptTokens", "maxResponseTokens")
SERVING = ("rollout", "teacher", "judge", "executor", "redis")
EFFECTS: tuple[tuple[str, str], ...] = (
    ("spec.suspend", NOW),
    ("spec.managedBy", NEVER),
    ("spec.queueName", ATTEMPT),
    ("spec.priorityClassName", replaces(*SERVING, and_attempt=True)),
    ("spec.seed", NEVER),
    ("spec.model.source", NEVER),
    ("spec.model.assumeInstructionTuned", NOW),
    ("spec.model.*", ATTEMPT),
    ("spec.storage.size", NOW),
    ("spec.storage.reclaimPolicy", NOW),
    ("spec.storage.endpointUrl", FETCH),
    ("spec.storage.region", FETCH),
    ("spec.storage.addressing", FETCH),
    ("spec.storage.*", NEVER),
    ("spec.accelerator.*", NEVER),
    ("spec.stages[[]].type", NEVER),
    ("spec.stages[[]].*", STAGE),
    ("spec.grpo.objective.teacher.source", replaces("teacher", and_attempt=True)),
    *((f"spec.grpo.{field}", replaces("rollout", "teacher", and_attempt=True)) for field in LENGTHS),
    ("spec.grpo.*", ATTEMPT),
    ("spec.validation.sampling.maxResponseTokens", replaces("rollout", and_attempt=True)),
    ("spec.validation.*", ATTEMPT),
    ("spec.checkpoint.*", ATTEMPT),
    ("spec.trainer.*", ATTEMPT),
    ("spec.rollout.replicas", NOW),
    ("spec.rollout.tensorParallel", replaces("rollout")),
    ("spec.rollout.image", replaces("rollout", "teacher")),
    ("spec.rollout.resources.*", replaces("rollout")),
    ("spec.rollout.engineArgs", ENGINE),
    ("spec.rollout.tool", replaces("executor", and_attempt=True)),
    ("spec.rollout.*", ATTEMPT),
    ("spec.teacher.replicas", NOW),
    ("spec.teacher.engineArgs", ENGINE),
    ("spec.teacher.*", replaces("teacher")),
    ("spec.tools[[]].*", ATTEMPT),
    ("spec.mcpServers[[]].command", LOCAL),
    ("spec.mcpServers[[]].*", ATTEMPT),
    *(
        (f"spec.environments[[]].{field}", replaces("environment", and_attempt=True))
        for field in ("image", "command", "resources.*")
    ),
    ("spec.environments[[]].replicas", NOW),
    ("spec.environments[[]].*", ATTEMPT),
    *(
        (f"spec.agent.{field}", replaces("agent", and_attempt=True))
        for field in ("image", "command", "maxConcurrentEpisodes")
    ),
    ("spec.agent.replicas", NOW),
    ("spec.agent.*", ATTEMPT),
    ("spec.rewards[[]].*", ATTEMPT),
    ("spec.judge.replicas", NOW),
    ("spec.judge.image", replaces("judge", "executor")),
    ("spec.judge.packages", replaces("executor", and_attempt=True)),
    ("spec.judge.limits.memory", replaces("executor", and_attempt=True)),
    ("spec.judge.limits.*", ATTEMPT),
    ("spec.executor.replicas", NOW),
    ("spec.executor.isolation", replaces("judge", "executor")),
    ("spec.executor.*", replaces("executor")),
    ("spec.redis.storage", NEVER),
    ("spec.redis.*", replaces("redis")),
    ("spec.tracking.*", ATTEMPT),
    ("spec.failurePolicy.*", NOW),
    ("spec.nodeLoss.*", NOW),
    ("spec.stuck.*", NOW),
    ("spec.pendingDeadlineSeconds", NOW),
    ("spec.activeDeadlineSeconds", NOW),
    ("spec.ttlSecondsAfterFinished", NOW),
    ("spec.trajectories.*", ATTEMPT),
    ("spec.secretRefs.hubToken.*", FETCH),
    ("spec.secretRefs.proxy.*", FETCH),
    ("spec.secretRefs.storage.*", FETCH),
    ("spec.secretRefs.teacher.*", ATTEMPT),
    ("spec.secretRefs.ca.*", ATTEMPT),
    ("spec.registryPrefix", replaces(*SERVING, and_attempt=True)),
    ("spec.runtimePatches[[]].manager", NOW),
    ("spec.runtimePatches[[]].*", f"{NOW}, replaces the roles of the patch; trainer: {ATTEMPT}"),
)
"""Pattern of a field's path, as fnmatch has it -> when a change takes effect; the first match decides."""


def effect(path: str) -> str:
    """When a change of the field takes effect. Raises KeyError for a field that the table does not have."""
    for pattern, value in EFFECTS:
        if fnmatchcase(path, pattern) or fnmatchcase(path, pattern.removesuffix(".*")):
            return value
    raise KeyError(f"{path} is missing in EFFECTS of scripts/docs/effects.py: add when a change takes effect")
