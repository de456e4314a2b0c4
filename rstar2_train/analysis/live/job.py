"""Follows the state directory of a job: the trajectory files and metrics that are new since the last look.

The job replaces files atomically, deletes old ones (`spec.trajectories`), and samples a step again after some
failures. A row of the table is therefore valid for one *generation*: if a shown file disappears or changes, the
generation increases, and the page loads the table again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rstar2_train.analysis.analyse import find_tokenizer, load_decoder
from rstar2_train.analysis.live.curves import JournalCurves, plots_data
from rstar2_train.analysis.live.table import ROW_COLUMNS, matching_rows, read_table
from rstar2_train.analysis.pages import viewer_constants
from rstar2_train.analysis.sources import AnalysisError, TrajectoryFile, stored_files
from rstar2_train.analysis.tokens import annotate
from rstar2_train.analysis.viewer import trajectory_data
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.roles import ToolParser
from rstar2_train.api.state_dir import JobState
from rstar2_train.api.state_files import UnreadableState
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.template_file import tool_parser
from rstar2_train.rollout.trajectory_store import TrajectoryStoreError
from rstar2_train.tracking.traces import Decode
from rstar2_train.tracking.tracker import journal_file
from rstar2_train.utils.text import reason

Identity = tuple[int, int, int]
"""Inode, size and time of change of a file. A replaced file has another one."""


@dataclass(slots=True)
class ShownFile:
    """A trajectory file whose rows are in the table."""

    source: TrajectoryFile
    identity: Identity
    columns: dict[str, list[Any]]
    prompts: dict[str, str] = field(default_factory=dict)
    """Prompt id -> lower-case text, of the prompts that a search has read."""

    def __len__(self) -> int:
        """Return the number of its rows."""
        return len(self.columns["prompt"])


class LiveJob:
    """The shown part of a job. Threads may call it at the same time."""

    def __init__(self, state: JobState, *, limit: int) -> None:
        """`limit`: approximate number of trajectories in the table, of the newest files; a file is not split."""
        self._state = state
        self._limit = limit
        self._lock = threading.Lock()
        self._files: list[ShownFile] = []
        self._generation = 0
        self._stored = 0
        self._faults: dict[TrajectoryFile, tuple[Identity, str]] = {}
        self._metrics = JournalCurves(journal_file(state.root))
        self._decoder: tuple[Decode, ToolParser] | None = None

    def news(self, generation: int, rows: int, points: int) -> dict[str, Any]:
        """Return all changes since a page that has `rows` rows of `generation` and `points` points of the curves.

        A page of another generation gets all rows and points. Raises AnalysisError for a damaged job file.
        """
        with self._lock:
            job = self._job()
            self._read(job)
            if generation != self._generation:
                rows = points = 0
            news = {
                "generation": self._generation,
                "start": rows,
                "columns": self._columns(rows),
                "firstPoint": points,
                "points": self._metrics.points[points:],
                "status": self._status(job),
            }
            if rows == 0:
                news["table"] = viewer_constants(job, self._stored) | {"plots": plots_data()}
            return news

    def trajectory(self, generation: int, row: int) -> dict[str, Any]:
        """Return the texts of a row, as in a chunk of the static viewer.

        Raises AnalysisError if the row is of an older generation or no tokenizer exists, TrajectoryStoreError if the
        file was deleted since.
        """
        with self._lock:
            file, place = self._locate(generation, row)
            trajectory = trajectory_store.read_row(file.source.path, place)
            decode, parser = self._texts(self._job())
            turns = annotate(trajectory, decode, parser=parser)
            return {"prompt": decode(trajectory.prompt_ids), "row": trajectory_data(trajectory, turns)}

    def search(self, generation: int, text: str) -> list[int]:
        """Return the rows whose prompt, prompt id or response contains `text`, in any case."""
        with self._lock:
            if generation != self._generation:
                raise AnalysisError(_OUTDATED)
            decode, _ = self._texts(self._job())
            matches: list[int] = []
            start = 0
            for file in self._files:
                places = matching_rows(file.source.path, text, file.prompts, decode)
                matches += [start + place for place in places]
                start += len(file)
            return matches

    def _job(self) -> AgenticRLJob:
        try:
            return self._state.job()
        except UnreadableState as error:
            raise AnalysisError(f"{error}.") from error
        except OSError as error:
            raise AnalysisError(f"{self._state.job_file} cannot be read: {reason(error)}") from error

    def _read(self, job: AgenticRLJob) -> None:
        """Bring the table and the curves up to date."""
        wanted, self._stored = self._newest(stored_files(self._state, job))
        known = {(file.source, file.identity): file for file in self._files}
        previous = [(file.source, file.identity) for file in self._files]
        is_extended = wanted[: len(previous)] == previous
        files: list[ShownFile] = []
        for source, identity in wanted:
            file = known.get((source, identity))
            if file is None:
                try:
                    file = ShownFile(source, identity, read_table(source))
                except TrajectoryStoreError as error:
                    if source.path.exists():  # otherwise the job has deleted it since
                        self._faults[source] = (identity, str(error))
                    continue
            files.append(file)
        self._files = files
        is_replaced = self._metrics.read()
        if not is_extended or is_replaced:
            self._generation += 1

    def _newest(self, sources: Sequence[TrajectoryFile]) -> tuple[list[tuple[TrajectoryFile, Identity]], int]:
        """Return the newest readable files up to the limit, oldest first, and the number of all stored trajectories.

        Files that are already shown keep their order, because a page has their rows.
        """
        counts: dict[TrajectoryFile, tuple[Identity, int]] = {}
        cached = {(file.source, file.identity): len(file) for file in self._files}
        for source in sources:
            try:
                status = source.path.stat()
                identity = (status.st_ino, status.st_size, status.st_mtime_ns)
                if self._faults.get(source, (None, ""))[0] == identity:
                    continue
                self._faults.pop(source, None)
                rows = cached.get((source, identity))
                counts[source] = (identity, trajectory_store.count_rows(source.path) if rows is None else rows)
            except FileNotFoundError:
                continue
            except TrajectoryStoreError as error:
                if source.path.exists():
                    self._faults[source] = (identity, str(error))
        place = {file.source: index for index, file in enumerate(self._files)}
        order = sorted(counts, key=lambda source: (place.get(source, math.inf), counts[source][0][2]))
        total, first = 0, len(order)
        while first > 0 and total < self._limit:
            first -= 1
            total += counts[order[first]][1]
        return [(source, counts[source][0]) for source in order[first:]], sum(rows for _, rows in counts.values())

    def _columns(self, start: int) -> dict[str, list[Any]]:
        columns: dict[str, list[Any]] = {name: [] for name in ROW_COLUMNS}
        for file in self._files:
            if start < len(file):
                for name in ROW_COLUMNS:
                    columns[name] += file.columns[name][max(0, start) :]
            start -= len(file)
        return columns

    def _locate(self, generation: int, row: int) -> tuple[ShownFile, int]:
        if generation == self._generation and row >= 0:
            for file in self._files:
                if row < len(file):
                    return file, row
                row -= len(file)
        raise AnalysisError(_OUTDATED)

    def _texts(self, job: AgenticRLJob) -> tuple[Decode, ToolParser]:
        """Return the decoder and the form of the calls. Raises AnalysisError without a tokenizer."""
        if self._decoder is None:
            tokenizer = find_tokenizer(self._state, job)
            self._decoder = load_decoder(tokenizer), tool_parser(tokenizer, job.spec.model)
        return self._decoder

    def _status(self, job: AgenticRLJob) -> dict[str, Any]:
        progress = self._state.progress()
        stages = []
        for stage in job.spec.stages:
            outcome = self._state.stage(stage.name).outcome()
            is_current = progress is not None and progress.stage == stage.name
            phase = "done" if outcome is not None and outcome.ended_well else "current" if is_current else "pending"
            message = outcome.message if outcome is not None and not outcome.ended_well else ""
            stages.append({"name": stage.name, "type": stage.type, "phase": phase, "message": message})
        return {
            "stages": stages,
            "progress": None if progress is None else progress.model_dump(mode="json", by_alias=True),
            "stored": self._stored,
            "faults": [message for _, message in self._faults.values()],
        }


_OUTDATED = "the table has changed since this row was shown; the page loads it again"
