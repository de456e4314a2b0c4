"""Checks the files of a job's sources before its first stage: models, rows, chat template and functions.

`rstar2 validate`, the preflight of `rstar2 run` and the prepare program of a cluster call it. The base install, which
`rstar2 validate` supports, has only the checks of the models' config.json and of the headers of their weights.
"""

from __future__ import annotations

from pathlib import Path

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.capacity.config_file import CONFIG, InvalidConfig, read_config
from rstar2_train.capacity.fit import is_packed
from rstar2_train.capacity.job_model import model_obstacles, weight_obstacles
from rstar2_train.capacity.model_support import UnsupportedModel, is_proven
from rstar2_train.capacity.reference_model import find_reference_errors, is_served, reference_models
from rstar2_train.capacity.weight_check import find_weight_faults
from rstar2_train.capacity.weight_files import ambiguous_weights
from rstar2_train.capacity.weight_headers import read_tensors


def find_source_errors(job: AgenticRLJob) -> dict[str, str]:
    """Return the error of each file of a job whose sources are paths: field -> error. Runs the code of objectives.

    For a field with several errors, that of its rows or functions is returned. Raises ImportError in the base install.
    """
    from rstar2_train.data.sources import find_invalid_files
    from rstar2_train.rollout.template_check import find_template_errors
    from rstar2_train.trainer.objective_check import find_objective_errors

    errors = find_template_errors(job) | find_model_errors(job) | find_objective_errors(job)
    return errors | find_invalid_files(job)


def find_model_errors(job: AgenticRLJob) -> dict[str, str]:
    """Return why the trainer or the engines refuse the models of a job whose sources are paths: field -> reasons.

    The headers of the weight files are compared with the class of the model. A model type that no test proves is
    measured with a small random model. The base install compares the headers with config.json only.
    """
    folder, errors = Path(job.spec.model.source), find_reference_errors(job)
    for field, other in reference_models(job).items():
        if field in errors or is_served(job, field) or not (other / CONFIG).is_file():
            continue
        if refusal := _trained_obstacle(other, packed=is_packed(job), written=False):
            errors[field] = refusal
    if not (folder / CONFIG).is_file():
        return errors
    if error := ambiguous_weights(folder):
        return errors | {"spec.model.source": error}
    reason: str | None
    if obstacles := model_obstacles(job, folder):
        reason = f"{folder / CONFIG}: {'; '.join(obstacles)}"
    elif any(stage.learns for stage in job.spec.stages):
        reason = _trained_obstacle(folder, packed=is_packed(job), written=True)
    else:
        reason = "; ".join(weight_obstacles(job, folder))
    return errors | ({"spec.model.source": reason} if reason else {})


def _trained_obstacle(folder: Path, *, packed: bool, written: bool) -> str | None:
    """Return why the trainer does not load a folder, or not compute with its weights; None: it does.

    A class that no test proves is measured. `written`: whether the job writes the weights.
    """
    try:
        try:
            from rstar2_train.trainer.file_check import check_model_files
            from rstar2_train.trainer.self_check import check_folder
        except ImportError:  # an installation without the trainer: its ranks compare the class
            faults = find_weight_faults(folder, read_config(folder), read_tensors(folder), written=written)
            reasons = "; ".join(faults)
            return f"{folder}: {reasons}" if reasons else None
        check_model_files(folder, written=written)
        if not is_proven(folder):
            check_folder(folder, packed=packed)
    except (InvalidConfig, UnsupportedModel) as error:
        return str(error)
    return None
