"""Applies journal events to an MLflow server. Only the shipper imports this module: importing mlflow takes seconds.

All operations are idempotent. Runs are found by tags, metrics have the time of their event (the server drops
duplicates), and traces have deterministic ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from mlflow.entities import Experiment, Metric, Param, RunTag, TraceInfo, TraceLocation, TraceState
from mlflow.entities.span import Span as MlflowSpan
from mlflow.exceptions import MlflowException
from mlflow.tracing.client import TracingClient
from mlflow.tracking import MlflowClient
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from rstar2_train.tracking.journal import Event
from rstar2_train.tracking.traces import Span, Trace
from rstar2_train.tracking.tracker import JOB, TrackingTarget

_MAX_BATCH = 1000
"""Maximum metrics in one MLflow request."""
_MAX_PARAMS = 100
"""Maximum parameters or tags in one MLflow request."""
_MAX_VALUE = 5000
"""Maximum characters of a parameter or tag."""
_END_TAGS = frozenset({"rstar2.outcome", "rstar2.reason"})
"""Tags of a run that has ended."""


def metric_name(name: str) -> str:
    """Return a valid MLflow metric name: slices and benchmarks may have characters that MLflow rejects."""
    parts = re.sub(r"[^\w.\- :/]", "_", name).split("/")
    return "/".join(part for part in parts if part.strip("."))


class RunNotFound(Exception):
    """A run of this journal was deleted on the server, so the whole journal must be sent again."""


class MlflowSink:
    """Applies events to one MLflow server, in journal order."""

    def __init__(self, target: TrackingTarget, runs: dict[str, str]) -> None:
        """`runs`: known run ids by stage; new ones are added. Raises RunNotFound if a run was deleted."""
        self._target = target
        self._client = MlflowClient(tracking_uri=target["uri"])
        self._tracing = TracingClient(tracking_uri=target["uri"])
        self._experiment = self._find_experiment()
        self.runs = runs
        for run in runs.values():
            self._check(run)

    def apply(self, events: list[Event]) -> None:
        """Send consecutive events. Consecutive metrics of one run are sent in one request."""
        pending: list[Event] = []
        for event in events:
            if event["kind"] == "metrics" and (not pending or pending[0]["run"] == event["run"]):
                pending.append(event)
                continue
            self._log_metrics(pending)
            pending = [event] if event["kind"] == "metrics" else []
            if not pending:
                self._apply_one(event)
        self._log_metrics(pending)

    def _apply_one(self, event: Event) -> None:
        handlers: dict[str, Callable[[Event], None]] = {
            "start": self._start,
            "end": self._end,
            "artifact": self._log_artifact,
            "trace": self._log_trace,
        }
        handlers[event["kind"]](event)

    def _log_metrics(self, events: list[Event]) -> None:
        metrics = [
            Metric(metric_name(name), value, event["time"], event["step"])
            for event in events
            for name, value in event["values"].items()
        ]
        for batch in _batches(metrics, _MAX_BATCH):
            self._client.log_batch(self._run(events[0]["run"]), metrics=batch)

    def _start(self, event: Event) -> None:
        run_id = self._run(event["run"], created=event["time"])
        run = self._client.get_run(run_id)
        known = run.data.params
        new = [Param(key, value[:_MAX_VALUE]) for key, value in event["params"].items() if key not in known]
        for batch in _batches(new, _MAX_PARAMS):
            self._client.log_batch(run_id, params=batch)
        # MLflow parameters are immutable, so tags record the changes of a later attempt.
        tags = dict(event["tags"])
        for key, value in event["params"].items():
            if key in known and known[key] != value[:_MAX_VALUE]:
                tags[f"rstar2.changed.{key}"] = value
        self._set_tags(run_id, tags)
        for tag in _END_TAGS & run.data.tags.keys():  # of an earlier attempt
            self._client.delete_tag(run_id, tag)
        self._client.update_run(run_id, status="RUNNING")

    def _end(self, event: Event) -> None:
        run_id = self._run(event["run"])
        if event["run"] == JOB:
            for child in self._open_children(run_id):
                self._end_run(child, event)
        self._end_run(run_id, event)

    def _end_run(self, run_id: str, event: Event) -> None:
        self._set_tags(run_id, event["tags"])
        self._client.set_terminated(run_id, status=event["status"], end_time=event["time"])

    def _open_children(self, job_run: str) -> list[str]:
        """Return the runs of stages that are open. A journal that was lost with a pod's disk had their start."""
        query = f"tags.`mlflow.parentRunId` = '{job_run}' and attributes.status = 'RUNNING'"
        return [str(run.info.run_id) for run in self._client.search_runs([self._experiment], query)]

    def _log_artifact(self, event: Event) -> None:
        path = Path(event["path"])
        if path.exists():  # retention may have deleted the file, which is not an error
            self._client.log_artifact(self._run(event["run"]), str(path))

    def _log_trace(self, event: Event) -> None:
        trace: Trace = event["trace"]
        run_id = self._run(event["run"])
        root = trace["spans"][0]
        end = max(span["end"] for span in trace["spans"])
        self._tracing.start_trace(
            TraceInfo(
                trace_id=f"tr-{trace['id']}",
                trace_location=TraceLocation.from_experiment_id(self._experiment),
                request_time=root["start"] // 1_000_000,
                execution_duration=(end - root["start"]) // 1_000_000,
                state=TraceState.ERROR if root["error"] else TraceState.OK,
                request_preview=trace["request"][-500:],
                response_preview=trace["response"][:500],
                trace_metadata={
                    "mlflow.sourceRun": run_id,
                    "mlflow.traceInputs": json.dumps(root["inputs"])[:_MAX_VALUE],
                    "mlflow.traceOutputs": json.dumps(root["outputs"])[:_MAX_VALUE],
                },
                tags={"mlflow.traceName": trace["name"], **trace["tags"]},
            )
        )
        self._tracing.log_spans(self._experiment, _otel_spans(trace))

    def _set_tags(self, run_id: str, tags: dict[str, str]) -> None:
        entities = [RunTag(key, value[:_MAX_VALUE]) for key, value in tags.items()]
        for batch in _batches(entities, _MAX_PARAMS):
            self._client.log_batch(run_id, tags=batch)

    def _run(self, key: str, created: int | None = None) -> str:
        """Return the id of the run of a stage or the job: known, found by tags, or created."""
        if key not in self.runs:
            self.runs[key] = self._find_run(key) or self._create_run(key, created)
        return self.runs[key]

    def _find_run(self, key: str) -> str | None:
        query = f"tags.`rstar2.job_uid` = '{self._target['uid']}' and tags.`rstar2.stage` = '{key or '-'}'"
        runs = self._client.search_runs([self._experiment], query, max_results=1)
        return str(runs[0].info.run_id) if runs else None

    def _create_run(self, key: str, created: int | None) -> str:
        job = self._target["job"]
        tags = {
            "rstar2.job": job,
            "rstar2.job_uid": self._target["uid"],
            "rstar2.stage": key or "-",
            "mlflow.source.name": "rstar2",
            "mlflow.source.type": "JOB",
        }
        if key != JOB:
            tags["mlflow.parentRunId"] = self._run(JOB, created)
        name = job if key == JOB else f"{job} / {key}"
        run = self._client.create_run(self._experiment, start_time=created, tags=tags, run_name=name)
        return str(run.info.run_id)

    def _check(self, run_id: str) -> None:
        try:
            run = self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                raise RunNotFound(run_id) from error
            raise
        if run.info.lifecycle_stage != "active":
            raise RunNotFound(run_id)

    def _find_experiment(self) -> str:
        name = self._target["experiment"]
        experiment: Experiment | None = self._client.get_experiment_by_name(name)
        if experiment is None:
            return str(self._client.create_experiment(name, artifact_location=self._target["artifacts"]))
        return str(experiment.experiment_id)


def _otel_spans(trace: Trace) -> list[MlflowSpan]:
    number = int(trace["id"], 16)
    contexts = [
        SpanContext(number, (number + index) % (1 << 64) or 1, is_remote=False, trace_flags=TraceFlags(1))
        for index, _ in enumerate(trace["spans"])
    ]
    return [
        MlflowSpan(
            ReadableSpan(
                name=span["name"],
                context=context,
                parent=None if span["parent"] is None else contexts[span["parent"]],
                resource=Resource.get_empty(),  # the default would add attributes of this process to each trace
                attributes=_attributes(span, trace["id"]),
                start_time=span["start"],
                end_time=span["end"],
                status=Status(StatusCode.ERROR, span["error"]) if span["error"] else Status(StatusCode.OK),
            )
        )
        for span, context in zip(trace["spans"], contexts, strict=True)
    ]


def _attributes(span: Span, trace_id: str) -> dict[str, str]:
    """Return the attributes of a span as JSON texts, the form in which MLflow stores them."""
    values: dict[str, Any] = {
        "mlflow.traceRequestId": f"tr-{trace_id}",
        "mlflow.spanType": span["type"],
        "mlflow.spanInputs": span["inputs"],
        "mlflow.spanOutputs": span["outputs"],
        **{key: value for key, value in span["attributes"].items() if value is not None},
    }
    return {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}


def _batches(items: list[Any], size: int) -> Iterable[list[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
