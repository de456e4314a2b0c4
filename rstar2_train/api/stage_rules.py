"""Rules about settings of SFT, Filter and Evaluate stages, and of the validation, that have no effect. Pure.

`rules.py` runs `unused_in_stages`; grpo_rules.py has those of GRPO stages.
"""

from __future__ import annotations

from collections.abc import Iterator

from rstar2_train.api.issue import Issue
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Sampling

CONSTANT = "has no effect: schedule Constant has no final learning rate"
NO_DECAY = "has no effect: with warmupRatio 1 no step follows the warm-up; lower warmupRatio"
REPEATED = "repeats each sample at temperature 0, unless tools or engines differ: set 1, or a higher temperature"
GREEDY = "has no effect: temperature 0 takes the most probable token"


def unused_in_stages(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield the settings without effect next to the others."""
    for index, stage in enumerate(job.spec.stages):
        sft = stage.sft
        if sft is not None and sft.min_learning_rate_ratio and (sft.schedule == "Constant" or sft.warmup_ratio == 1):
            reason = CONSTANT if sft.schedule == "Constant" else NO_DECAY
            at = f"spec.stages[{index}].sft.minLearningRateRatio"
            yield Issue(at, reason, sft.min_learning_rate_ratio, warning=True)
    for at, samples, sampling in _samplings(job):
        if sampling.temperature == 0 and sampling.top_p < 1:
            yield Issue(f"{at}.sampling.topP", GREEDY, sampling.top_p, warning=True)
        if sampling.temperature == 0 and samples > 1:
            yield Issue(f"{at}.samples", REPEATED, samples, warning=True)


def _samplings(job: AgenticRLJob) -> Iterator[tuple[str, int, Sampling]]:
    """Yield the path of each measurement of the job, its samples per problem and their sampling."""
    if job.spec.validation is not None:
        yield "spec.validation", job.spec.validation.samples, job.spec.validation.sampling
    for index, stage in enumerate(job.spec.stages):
        for name, measured in (("filter", stage.filter), ("evaluate", stage.evaluate)):
            if measured is not None:
                yield f"spec.stages[{index}].{name}", measured.samples, measured.sampling
