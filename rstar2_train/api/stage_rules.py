"""Rules about settings of SFT, Filter and Evaluate stages, and of the validation, that have no effect. Pure.

`rules.py` runs `unused_in_stages`; grpo_rules.py has those of GRPO stages.
"""

from __future__ import annotations

from collections.abc import Iterator

from rstar2_train.api.issue import Issue
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Sampling

CONSTANT = "has no effect: schedule Constant has no final learning rate"
GREEDY = "has no effect: temperature 0 takes the most probable token"


def unused_in_stages(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield the settings without effect next to the others."""
    for index, stage in enumerate(job.spec.stages):
        sft = stage.sft
        if sft is not None and sft.schedule == "Constant" and sft.min_learning_rate_ratio:
            at = f"spec.stages[{index}].sft.minLearningRateRatio"
            yield Issue(at, CONSTANT, sft.min_learning_rate_ratio, warning=True)
    for at, sampling in _samplings(job):
        if sampling.temperature == 0 and sampling.top_p < 1:
            yield Issue(f"{at}.topP", GREEDY, sampling.top_p, warning=True)


def _samplings(job: AgenticRLJob) -> Iterator[tuple[str, Sampling]]:
    """Yield the path and the value of each sampling of the job."""
    if job.spec.validation is not None:
        yield "spec.validation.sampling", job.spec.validation.sampling
    for index, stage in enumerate(job.spec.stages):
        if stage.filter is not None:
            yield f"spec.stages[{index}].filter.sampling", stage.filter.sampling
        if stage.evaluate is not None:
            yield f"spec.stages[{index}].evaluate.sampling", stage.evaluate.sampling
