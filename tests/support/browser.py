"""Drives a real Chromium without a window, over its DevTools protocol: opens a page, clicks, types, takes pictures.

`find_browser` takes an installed Chromium or Chrome. As root it installs Debian's `chromium`, once per machine.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from scripts.setup import SetupFailed, apt_install

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-extensions", "--disable-background-networking", "--disable-component-update", "--mute-audio"),
    *("--remote-debugging-port=0", "--remote-allow-origins=*", "about:blank"),
)
SECONDS = 180
"""Maximum time to wait for the browser, or for a condition in a page."""


def find_browser() -> str:
    """Return the path of a browser; skip the test with the reason if there is none."""
    for _ in range(2):
        path = next(filter(None, map(shutil.which, PROGRAMS)), None)
        if path is not None:
            return path
        if os.geteuid() == 0:
            try:
                apt_install(["chromium"])
            except SetupFailed as error:
                pytest.skip(f"no Chromium: {error}")
    pytest.skip("no Chromium: install the package chromium, or Google Chrome")


class Page:
    """A page of the browser."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []
        """Events of the protocol, such as messages of the console and dialogs, in their order."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(timeout=SECONDS))
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    def open(self, url: str, *, width: int = 1300, height: int = 900) -> None:
        """Open an address in a window of this size."""
        self.resize(width, height)
        self.call("Page.navigate", url=url)

    def resize(self, width: int, height: int = 900) -> None:
        """Change the size of the window."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true. A name that does not exist yet counts as false."""
        end = time.monotonic() + SECONDS
        while not self.value(f"(() => {{ try {{ return Boolean({condition}) }} catch {{ return false }} }})()"):
            assert time.monotonic() < end, f"not true: {condition}; {self.messages()}"
            time.sleep(0.05)

    def click(self, selector: str, *, index: int = 0) -> None:
        """Click the middle of an element with the mouse."""
        box = self.value(
            f"(() => {{ const e = document.querySelectorAll({json.dumps(selector)})[{index}];"
            " e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            pressed = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], **pressed)

    def fill(self, selector: str, text: str) -> None:
        """Set the value of an input or a select, as a user does."""
        self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(text)};"
            " e.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )

    def text(self, selector: str) -> str:
        """Return the visible text of an element."""
        return str(self.value(f"document.querySelector({json.dumps(selector)}).innerText"))

    def messages(self) -> list[str]:
        """Return errors: uncaught exceptions, failed requests, violations of the security policy, and dialogs."""
        self.call("Runtime.evaluate", expression="0")  # receives pending events
        errors = []
        for event in self.events:
            name, parameters = event["method"], event["params"]
            if name == "Runtime.exceptionThrown":
                errors.append(str(parameters["exceptionDetails"].get("exception", {}).get("description")))
            elif name == "Log.entryAdded" and parameters["entry"]["level"] == "error":
                errors.append(parameters["entry"]["text"])
            elif name == "Page.javascriptDialogOpening":
                errors.append(f"dialog: {parameters['message']}")
        return errors

    def picture(self, path: Path) -> None:
        """Write a PNG of the window."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def open_browser(folder: Path) -> Iterator[Page]:
    """Start a browser with its profile in `folder`, and yield its page. It is stopped at the end."""
    port_file = folder / "DevToolsActivePort"
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        command = [find_browser(), f"--user-data-dir={folder}", *OPTIONS]
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        end = time.monotonic() + SECONDS
        while not (port_file.exists() and port_file.read_text().count("\n")):
            assert process.poll() is None and time.monotonic() < end, Path(log.name).read_text()[-2000:]
            time.sleep(0.05)
        port, path = port_file.read_text().split()
        with connect(f"ws://127.0.0.1:{port}{path}", max_size=None) as browser:
            browser.send(json.dumps({"id": 1, "method": "Target.createTarget", "params": {"url": "about:blank"}}))
            target = json.loads(browser.recv(timeout=SECONDS))["result"]["targetId"]
            with connect(f"ws://127.0.0.1:{port}/devtools/page/{target}", max_size=None) as connection:
                yield Page(connection)
    finally:
        process.terminate()
        process.wait(timeout=SECONDS)
