"""Checks the files of a job's sources before its first stage: rows, chat template, functions and frozen models.

`rstar2 validate`, the preflight of `rstar2 run` and the prepare program of a cluster call it.
"""

from __future__ import annotations

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.capacity.frozen_model import find_frozen_model_errors
from rstar2_train.data.sources import find_invalid_files
from rstar2_train.rollout.template_check import find_template_errors
from rstar2_train.trainer.objective_check import find_objective_errors


def find_source_errors(job: AgenticRLJob) -> dict[str, str]:
    """Return the error of each file of a job whose sources are paths: field -> error. Runs the code of objectives.

    For a field with several errors, that of its rows or functions is returned.
    """
    models = find_frozen_model_errors(job)
    return find_template_errors(job) | find_objective_errors(job) | models | find_invalid_files(job)
