"""Picture of the reward per step in the recorded runs of bench.environments: bench/results/environments.json -> SVG.

`python -m scripts.docs.reward_curve` draws it again; `make docs-record` does too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from scripts.docs.repository import ROOT

RECORD = ROOT / "bench" / "results" / "environments.json"
PICTURE = ROOT / "docs" / "pictures" / "sql-reward.svg"
COLORS = ("#3f51b5", "#e65100", "#2e7d32")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 250, 44, 70, 12, 40
"""Size of the picture, and its margins, in pixels."""
LABEL = 14
"""Least distance of two labels, in pixels."""


def rewards() -> list[list[float]]:
    """Return the mean reward of each step of GRPO-RoC, per seed."""
    curves = json.loads(RECORD.read_text("utf-8"))["sql"]["curves"]
    return [[step["reward"] for step in curve["roc"]] for curve in curves]


def draw(curves: Sequence[Sequence[float]]) -> str:
    """Return an SVG with one line per seed. Pure."""
    steps, right, base = len(curves[0]), WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(step: int) -> float:
        return LEFT + (right - LEFT) * (step - 1) / (steps - 1)

    def y(reward: float) -> float:
        return base - (base - TOP) * reward

    parts = [
        f'<path d="M{LEFT} {y(tick):g}H{right}"/><text x="{LEFT - 8}" y="{y(tick) + 4:g}" class="y">{tick:g}</text>'
        for tick in (0, 0.25, 0.5, 0.75, 1)
    ]
    parts += [f'<text x="{x(step):.1f}" y="{base + 17}">{step}</text>' for step in range(1, steps + 1)]
    parts.append(f'<text x="{(LEFT + right) / 2:g}" y="{HEIGHT - 5}">step</text>')
    lowest = float(base)
    for seed in sorted(range(len(curves)), key=lambda number: curves[number][-1]):
        color = f'"{COLORS[seed]}"'
        points = " ".join(f"{x(step):.1f},{y(reward):.1f}" for step, reward in enumerate(curves[seed], start=1))
        lowest = min(lowest - LABEL, y(curves[seed][-1]) + 4)
        parts.append(f'<polyline points="{points}" stroke={color}/>')
        parts.append(
            f'<text x="{right + 8}" y="{lowest:.1f}" class="seed" style="fill:{COLORS[seed]}">seed {seed}</text>'
        )
    body = "\n".join(parts)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="reward">
<style>text {{ font: 12px sans-serif; fill: #555; text-anchor: middle }} .y {{ text-anchor: end }}
.seed {{ text-anchor: start }} path {{ stroke: #ddd }} polyline {{ fill: none; stroke-width: 2 }}</style>
<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>
{body}
</svg>
"""


if __name__ == "__main__":
    PICTURE.write_text(draw(rewards()), encoding="utf-8")
    print(f"wrote {PICTURE.name}", file=sys.stderr)
