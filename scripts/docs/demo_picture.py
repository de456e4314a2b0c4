"""Picture of the demo's terminal, from its recorded output: docs/pictures/demo.txt -> docs/pictures/demo.svg.

    python -m scripts.docs.demo_picture            draws the recorded output again
    make docs-record                               runs the demo first, and records its output

The picture plays the output in 24 seconds and stops at its end. An SFT stage prints a line per half second, so the
picture has each 100th of its steps; all other lines are as recorded.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from html import escape
from pathlib import Path

from scripts.docs.repository import ROOT

RECORD = ROOT / "docs" / "pictures" / "demo.txt"
PICTURE = RECORD.with_suffix(".svg")
PROMPT = "$ make demo"
COLUMNS, ROWS = 112, 24
WIDTH, HEIGHT = 7.2, 17
"""Pixels of a character and of a line."""
PLAY_SECONDS, HOLD_SECONDS = 24.0, 6.0
SFT_STEPS = 100
"""The picture shows the steps of SFT that are multiples of this number."""
_TIME = re.compile(r"\[(\d+):(\d\d)\] (.*)")
_SFT_STEP = re.compile(r"sft: training, step (\d+)/")
_STYLE = """text { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  fill: #d9d9d9; white-space: pre }
.done { fill: #98e024 } .prompt { fill: #58d1eb; font-weight: bold }"""


def terminal_lines(record: str) -> Iterator[tuple[float, str]]:
    """Yield (second, line) of the recorded output, wrapped as a terminal wraps it. Pure."""
    second, last_step = 0.0, -1
    yield second, PROMPT
    for line in record.splitlines():
        if match := _TIME.match(line):
            second = 60.0 * int(match[1]) + int(match[2])
            if step := _SFT_STEP.match(match[3]):
                if int(step[1]) // SFT_STEPS == last_step // SFT_STEPS:
                    continue
                last_step = int(step[1])
        for part in textwrap.wrap(line, COLUMNS, drop_whitespace=False) or [""]:
            yield second, part


def draw(record: str) -> str:
    """Return the picture of the recorded output: an SVG that scrolls; without animation it shows the end. Pure."""
    lines = list(terminal_lines(record))
    total = lines[-1][0]
    width, height = round(COLUMNS * WIDTH) + 24, ROWS * HEIGHT + 20
    scrolled = max(0, len(lines) - ROWS)
    frames: dict[float, int] = {}
    for number, (second, _) in enumerate(lines, start=1):
        share = second / total * PLAY_SECONDS / (PLAY_SECONDS + HOLD_SECONDS)
        frames[round(100 * share, 2)] = number
    keys = "".join(
        f"{percent:g}% {{ transform: translateY({(ROWS - number) * HEIGHT if number > ROWS else 0}px) }}\n"
        for percent, number in frames.items()
    )
    covers = "".join(
        f"{percent:g}% {{ transform: translateY({number * HEIGHT}px) }}\n" for percent, number in frames.items()
    )
    text = "".join(_text(number, line) for number, (_, line) in enumerate(lines, start=1))
    seconds = PLAY_SECONDS + HOLD_SECONDS
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="make demo">
<style>{_STYLE}
@keyframes scroll {{
{keys}}}
@keyframes uncover {{
{covers}}}
.scroll {{ animation: scroll {seconds:g}s step-end both }}
.cover {{ fill: #1c1c1c; animation: uncover {seconds:g}s step-end both;
  transform: translateY({len(lines) * HEIGHT}px) }}
@media (prefers-reduced-motion: reduce) {{ .scroll, .cover {{ animation: none }} }}
</style>
<clipPath id="screen"><rect x="0" y="8" width="{width}" height="{ROWS * HEIGHT + 6}"/></clipPath>
<rect width="{width}" height="{height}" rx="8" fill="#1c1c1c"/>
<g clip-path="url(#screen)"><g class="scroll" transform="translate(0 {-scrolled * HEIGHT})">
{text}<rect class="cover" x="0" y="10" width="{width}" height="{len(lines) * HEIGHT}"/>
</g></g>
</svg>
"""


def _text(number: int, line: str) -> str:
    if not line.strip():
        return ""
    style = ' class="prompt"' if line == PROMPT else ' class="done"' if ": completed" in line else ""
    length = f' textLength="{len(line) * WIDTH:g}"'
    return f'<text x="12" y="{number * HEIGHT + 6}"{style}{length} xml:space="preserve">{escape(line)}</text>\n'


def record(state: Path) -> str:
    """Run the demo in a fresh state folder and return its output, with another name of the clone's folder."""
    command = [sys.executable, "-m", "rstar2_train.cli", "run", "examples/tiny.yaml", "--state", str(state)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.replace(str(ROOT), "/home/you/rstar2").splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


if __name__ == "__main__":
    if sys.argv[1:]:
        RECORD.write_text(record(Path(sys.argv[1])), encoding="utf-8")
    PICTURE.write_text(draw(RECORD.read_text("utf-8")), encoding="utf-8")
    print(f"wrote {PICTURE.name}", file=sys.stderr)
