"""The engines of a teacher (spec.teacher): one Deployment, and a Service that divides the requests among them.

They exist in the stages that have such a teacher. They sample nothing: the orchestrator asks them for the
log-probabilities of the tokens of each batch.
"""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.builders.manifest import Manifest
from rstar2_operator.builders.pod import NO_SURGE, BuildContext, deployment, service, template
from rstar2_operator.builders.rollout import BOOT_SECONDS, engine
from rstar2_train.api.stages import Stage
from rstar2_train.capacity.fit import rated_tokens


def teacher(context: BuildContext, stage: Stage) -> list[Manifest]:
    """Return Deployment and Service; nothing for a stage whose teacher no engine of the job serves."""
    resolved, spec = context.resolved, context.job.spec.teacher
    source = resolved.served_teacher(resolved.stage(stage.name))
    if spec is None or source is None:
        return []
    options = ["--model", source, "--teacher", stage.name]
    image = spec.image or context.job.spec.rollout.image
    tokens = rated_tokens(context.job, stage)
    pod = engine(context, "teacher", spec, own_image=image, options=options, tokens=tokens, devices={})
    name, labels = names.teacher(context.name), context.labels("teacher")
    return [
        service(name, labels, "engine", names.ENGINE_PORT),
        deployment(name, labels, spec.replicas, template(pod, context), deadline=BOOT_SECONDS, strategy=NO_SURGE),
    ]
