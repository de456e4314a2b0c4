"""`rstar2 validate`: check a manifest and print all its errors and warnings.

Files of this machine that the manifest names are read: rows, and the chat template with the demonstrations. Sources in
a bucket are looked up, if the environment has credentials. Sources of a cluster or of the Hub, and generated ones, are
not read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rstar2_train.cli.common import Subparsers, add_command, fail, warn_of_answers
from rstar2_train.utils.local_path import exists, local_path, missing_advice
from rstar2_train.utils.options import user_path

if TYPE_CHECKING:
    from rstar2_train.api.job import AgenticRLJob
    from rstar2_train.api.sources import SourceField

NAME = "validate"
DESCRIPTION = """Check a manifest and print all its errors. Rows and chat templates on this machine are read; objects of
buckets are looked up if the environment has credentials. Sources of a cluster or of the Hub are not read."""
EPILOG = """examples:
  rstar2 validate job.yaml
  rstar2 validate job.yaml && kubectl apply -f job.yaml

Errors have the field, its value and the allowed values. The exit code is 1 if there is one, else 0: warnings and notes
do not change it."""
PATIENCE_SECONDS = 10.0
"""Seconds for the retries of a lookup in a bucket."""


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand."""
    help = "check a manifest and print all its errors"
    parser = add_command(commands, NAME, main, help=help, description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("file", type=user_path, metavar="MANIFEST", help="AgenticRLJob manifest (YAML)")


def main(args: argparse.Namespace) -> int:
    """Validate the manifest; return the exit code."""
    from rstar2_train.api.loader import ManifestError, read_manifest
    from rstar2_train.api.validation import check

    try:
        job, issues = check(read_manifest(args.file))
    except ManifestError as error:
        return fail(NAME, str(error))
    for issue in issues:
        print(issue, file=sys.stdout if issue.warning else sys.stderr)
    if job is None:
        errors = sum(not issue.warning for issue in issues)
        return fail(NAME, f"{args.file}: {errors} error{'s' if errors > 1 else ''}")
    invalid, unclear = _check_local_files(job, args.file.parent)
    invalid |= _find_missing_objects(job)
    invalid |= {} if invalid else _try_teachers(job, args.file.parent)
    for field, message in invalid.items():
        print(f"error: {field}: {message}", file=sys.stderr)
    if invalid:
        return fail(NAME, f"{args.file}: {len(invalid)} error{'s' if len(invalid) > 1 else ''}")
    for note in _model_notes(job, args.file.parent):
        print(f"note: spec.model.source: {note}")
    for field, faults in unclear.items():
        for line in warn_of_answers(faults, f"warning: {field}: "):
            print(line)
    stages = [stage.name for stage in job.spec.stages]
    print(f"{args.file}: valid, {len(stages)} stage{'s' if len(stages) > 1 else ''}: {', '.join(stages)}")
    return 0


def _check_local_files(job: AgenticRLJob, folder: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the errors of the job's files on this machine (field -> error), and their unclear answers if none.

    `folder`: that of the manifest.
    """
    from rstar2_train.api.sources import sources
    from rstar2_train.launch.source_errors import find_model_errors, find_source_errors

    job = job.model_copy(deep=True)
    local, faults = set(), {}
    for source in sources(job):
        try:
            if path := _local_source(source, folder):
                source.put(str(path.absolute()))  # a link of the Hub's cache has the suffix, its target has none
                local.add(source.field)
        except ValueError as error:
            faults[source.field] = str(error)
    if faults or not local:
        return faults, {}
    try:
        from rstar2_train.data.known_answers import find_unclear_answers

        all_errors = find_source_errors(job)
    except ImportError as error:
        print(f"note: the local files were not read, because {error.name} is not installed: install rstar2[train]")
        return {field: message for field, message in find_model_errors(job).items() if field in local}, {}
    errors = {field: message for field, message in all_errors.items() if field in local}
    unclear = {} if errors else find_unclear_answers(job)
    return errors, {field: faults for field, faults in unclear.items() if field in local}


def _local_source(source: SourceField, folder: Path) -> Path | None:
    """Return the path of a source, or None with a note if it is not on this machine. Raises ValueError for no path."""
    if "://" in source.value:
        return None
    path = folder / local_path(source.value)
    if exists(path):
        return path
    print(f"note: {source.field}: {path.absolute()} does not exist, so it was not read{missing_advice(source.value)}")
    return None


def _model_notes(job: AgenticRLJob, folder: Path) -> list[str]:
    """Return what the job leaves out of its model, and where other programs differ, if the model is on this machine.

    `folder`: that of the manifest.
    """
    from rstar2_train.capacity.job_model import model_notes

    model = folder / local_path(job.spec.model.source)
    if "://" in job.spec.model.source or not model.is_dir():
        return []
    notes = model_notes(job, model)
    try:
        from rstar2_train.rollout.template_check import find_template_notes
    except ImportError:  # the base install: a note has named it
        return notes
    template = job.spec.model.chat_template
    own = job.spec.model.model_copy(update={"chat_template": template and str(folder / local_path(template))})
    return notes + find_template_notes(model, own)


def _try_teachers(job: AgenticRLJob, folder: Path) -> dict[str, str]:
    """Return why servers cannot be teachers: field -> reason. Prints a note or a warning for each that is not tried."""
    from rstar2_train.capacity.reference_model import remote_teachers

    if not (fields := remote_teachers(job)):
        return {}
    try:
        from rstar2_train.inference.engine_errors import EngineUnavailable
        from rstar2_train.rollout.teacher_check import find_teacher_errors
    except ImportError as error:
        print(f"note: no server of a teacher was tried, because {error.name} is not installed: install rstar2[train]")
        return {}
    model = folder / local_path(job.spec.model.source)
    if "://" in job.spec.model.source or not (model / "tokenizer.json").is_file():
        print(f"note: {', '.join(fields)} was not tried, because the tokenizer of the model is not on this machine")
        return {}
    job = job.model_copy(deep=True)
    job.spec.model.source = str(model)
    try:
        return find_teacher_errors(job)
    except EngineUnavailable as error:
        print(f"warning: {', '.join(fields)}: the server does not answer from this machine: {error}")
        return {}


def _find_missing_objects(job: AgenticRLJob) -> dict[str, str]:
    """Return why buckets cannot be used: field -> reason. Prints a note for each that is not tried."""
    from rstar2_train.api.sources import BUCKETS, sources, split_bucket

    errors = {}
    if message := _try_store(job):
        errors["spec.storage.url"] = message
    for source in sources(job):
        if not source.value.startswith(BUCKETS):
            continue
        bucket = split_bucket(source.value)
        if not _can_try(source.field, bucket.scheme):
            continue
        from rstar2_train.storage.source import find_objects, open_source
        from rstar2_train.storage.store import StorageError, StorageUnavailable

        try:
            find_objects(open_source(bucket, job.spec.storage, patience=PATIENCE_SECONDS), bucket.key)
        except StorageUnavailable as error:
            print(f"warning: {source.field}: the server does not answer from this machine: {error}")
        except StorageError as error:
            errors[source.field] = str(error)
    return errors


def _try_store(job: AgenticRLJob) -> str:
    """Return the first operation that fails in the bucket of the job's state; an empty text if none fails."""
    from rstar2_train.api.sources import split_store

    field, settings = "spec.storage.url", job.spec.storage
    if settings.url is None:
        return ""
    if not _can_try(field, split_store(settings.url).scheme):
        return ""
    from rstar2_train.storage.probe import probe
    from rstar2_train.storage.source import open_store
    from rstar2_train.storage.store import StorageError

    try:
        results = probe(open_store(settings, job.metadata.name, patience=PATIENCE_SECONDS))
    except (StorageError, OSError) as error:
        return str(error)
    return next((f"{operation}: {error}" for operation, error in results if error), "")


def _can_try(field: str, scheme: str) -> bool:
    """Return whether this installation and environment can reach a bucket; print why not. A folder needs no key."""
    import os

    try:
        from rstar2_train.storage.source import CREDENTIALS
    except ImportError as error:
        print(f"note: {field}: the bucket was not tried, because {error.name} is not installed")
        return False
    names = CREDENTIALS.get(scheme)
    if names is not None and not any(os.environ.get(name) for name in names):
        print(f"note: {field}: the bucket was not tried: the environment has no credentials for it")
        return False
    return True
