"""Wheels of small packages, written by the tests, and a package index that consists of them."""

import zipfile
from pathlib import Path

import pytest


def write_wheel(folder: Path, name: str, version: str, source: str) -> None:
    """Write a wheel with one module, which has the name of the package."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for file, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(file, text)


def use_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let uv and pip install packages only from the wheels in a folder."""
    for installer in ("UV", "PIP"):
        monkeypatch.setenv(f"{installer}_NO_INDEX", "1")
        monkeypatch.setenv(f"{installer}_FIND_LINKS", str(folder))
