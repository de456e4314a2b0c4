"""Checks the files of a job's sources before its first stage: models, rows, chat template and functions.

`rstar2 validate`, the preflight of `rstar2 run` and the prepare program of a cluster call it. The base install, which
`rstar2 validate` supports, has only the checks of the models' config.json.
"""

from __future__ import annotations

from pathlib import Path

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.capacity.fit import is_packed, model_obstacles
from rstar2_train.capacity.frozen_model import find_frozen_model_errors, frozen_models
from rstar2_train.capacity.model_support import UnsupportedModel, is_proven
from rstar2_train.capacity.weight_files import ambiguous_weights


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

    A model type that no test proves is measured with a small random model. The base install cannot measure.
    """
    folder, errors = Path(job.spec.model.source), find_frozen_model_errors(job)
    for field, other in frozen_models(job).items():
        if field in errors or not (other / "config.json").is_file() or is_proven(other):
            continue
        if reasons := _measured_obstacles(other, packed=is_packed(job)):
            errors[field] = f"{other}/config.json: {'; '.join(reasons)}"
    if not (folder / "config.json").is_file():
        return errors
    if error := ambiguous_weights(folder):
        return errors | {"spec.model.source": error}
    obstacles = model_obstacles(job, folder)
    if not obstacles and any(stage.learns for stage in job.spec.stages) and not is_proven(folder):
        obstacles = _measured_obstacles(folder, packed=is_packed(job))
    return errors | ({"spec.model.source": f"{folder}/config.json: {'; '.join(obstacles)}"} if obstacles else {})


def _measured_obstacles(folder: Path, *, packed: bool) -> list[str]:
    """Return why the trainer does not compute a class of models that no test proves, by a small random model of it."""
    try:
        from rstar2_train.trainer.self_check import check_folder
    except ImportError:  # an installation without the trainer: its ranks check the model
        return []
    try:
        check_folder(folder, packed=packed)
    except UnsupportedModel as error:
        return [str(error)]
    return []
