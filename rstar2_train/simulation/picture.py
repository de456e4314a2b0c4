"""Draws the engines of a simulation over time as one SVG: a row per engine, darker where more KV cache is in use."""

from __future__ import annotations

from collections.abc import Mapping

from rstar2_train.simulation.run import SimulationResult

WIDTH, LEFT, ROW, HEADER = 960, 90, 14, 34
COLUMNS = 240


def draw(results: Mapping[str, SimulationResult]) -> str:
    """Return an SVG with one block of rows per policy, all on one time axis."""
    longest = max(result.makespan for result in results.values())
    parts: list[str] = []
    top = 10
    for label, result in results.items():
        parts.append(
            f'<text x="{LEFT}" y="{top + 20}" class="title">{label}: {result.makespan:.0f} s, '
            f"{result.makespan_over_bound:.2f} times the lower bound, {result.preemptions} preemptions</text>"
        )
        top += HEADER
        for name in result.samples:
            parts.append(f'<text x="{LEFT - 8}" y="{top + ROW - 3}" class="name">{name}</text>')
            parts += _row(result, name, top=top, longest=longest)
            top += ROW + 2
        top += 10
    for quarter in range(5):
        x, seconds = LEFT + (WIDTH - LEFT) * quarter / 4, longest * quarter / 4
        parts.append(f'<text x="{x:.0f}" y="{top + 12}" class="tick">{seconds:.0f} s</text>')
    style = "text{font:12px sans-serif} .title{font-weight:bold} .name{text-anchor:end;font-size:10px} "
    style += ".tick{text-anchor:middle;font-size:10px}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 30} {top + 24}">'
        f"<style>{style}</style><title>KV cache in use per engine</title>"
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _row(result: SimulationResult, name: str, *, top: int, longest: float) -> list[str]:
    """Return one rectangle per column of time that has a sample; white where the cache is empty."""
    width = (WIDTH - LEFT) / COLUMNS
    columns: dict[int, float] = {}
    for sample in result.samples[name]:
        column = min(COLUMNS - 1, int(COLUMNS * sample.time / longest))
        columns[column] = max(columns.get(column, 0.0), sample.kv_usage)
    filled: list[str] = []
    usage = 0.0
    for column in range(int(COLUMNS * result.makespan / longest)):
        usage = columns.get(column, usage)
        if usage > 0:
            filled.append(
                f'<rect x="{LEFT + column * width:.1f}" y="{top}" width="{width + 0.1:.1f}" height="{ROW}" '
                f'fill="#1f5fa8" fill-opacity="{usage:.2f}"/>'
            )
    return filled
