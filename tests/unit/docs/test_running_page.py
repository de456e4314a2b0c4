"""docs/running.md has the files of the state directory."""

from __future__ import annotations

import re
from pathlib import Path

from rstar2_train.api.state_dir import JobState, StageState
from scripts.docs.repository import ROOT

PAGE = (ROOT / "docs" / "running.md").read_text("utf-8")


def test_running_page_has_each_path_of_the_state_directory() -> None:
    """The properties of JobState and StageState that are paths below the folder."""
    table = PAGE.partition("\n## State directory\n")[2].partition("\n## ")[0]
    stated = {name.rstrip("/") for name in re.findall(r"`([\w./]+)`", table)}
    paths = {path.name for path in (*_paths(JobState(Path("job"))), *_paths(StageState(Path("stage"))))}
    names = {name for text in stated for name in text.split("/")} | set(re.findall(r"stages/NAME/(\w+)/", table))
    assert len(paths) > 20
    assert paths - names == set()


def _paths(state: JobState | StageState) -> list[Path]:
    """Return the values of all properties that are paths."""
    names = [name for name, member in vars(type(state)).items() if isinstance(member, property)]
    return [value for name in names if isinstance(value := getattr(state, name), Path)]
