"""A headless Chromium for tests, driven through the pipe of its DevTools protocol: no port, no driver."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--remote-debugging-pipe",
    # One process for all pages: else each page starts two, that of the blank page before it and a spare one.
    "--disable-site-isolation-trials", "--renderer-process-limit=1",
    "--disable-features=IsolateOrigins,site-per-process,SpareRendererForSitePerProcess",
)  # fmt: skip
PATIENCE = 90
"""Seconds to wait for an answer, on a machine that may be busy."""


class Browser:
    """One page of a browser."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._buffer, self._number, self._session, self._target = b"", 0, "", ""
        self.events: list[dict[str, Any]] = []

    def open(self, path: Path | str, size: tuple[int, int] = (1200, 1000), script: str = "") -> None:
        """Show a file, or what an address gives, in place of the last one, and wait until it is whole.

        `script` is run in the new page before anything else.
        """
        last, target = self._target, self.call("Target.createTarget", url="about:blank")["targetId"]
        if last:
            self.call("Target.closeTarget", targetId=last)
        self._target = target
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.events.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=1, mobile=False
        )
        self.call("Page.addScriptToEvaluateOnNewDocument", source=script)
        self.call("Page.navigate", url=path if isinstance(path, str) else path.as_uri())
        while not self._named("Page.loadEventFired"):
            self._receive()
        while not self.run("location.href !== 'about:blank' && document.readyState === 'complete'"):
            time.sleep(0.02)  # the event was that of the blank page before

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def point(self, selector: str, click: bool = False) -> None:
        """Move the mouse onto an element, and press it if asked."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{element}.scrollIntoView({{block: 'center'}})")
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        centre = self.run(
            f"(box => ({{x: box.x + box.width / 2, y: box.y + box.height / 2}}))({element}.getBoundingClientRect())"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **centre)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **centre)

    def picture(self, path: Path) -> None:
        """Save what the page shows as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    @property
    def complaints(self) -> list[dict[str, Any]]:
        """What the page's console was told beyond plain notes, and what its scripts threw."""
        notes = [event["params"] for event in self._named("Log.entryAdded", "Runtime.consoleAPICalled")]
        wrong = [params for params in notes if params.get("entry", params).get("level", params.get("type")) != "info"]
        return [*wrong, *(event["params"] for event in self._named("Runtime.exceptionThrown"))]

    @property
    def fetched(self) -> list[str]:
        """The addresses that the page asked for."""
        return [event["params"]["request"]["url"] for event in self._named("Network.requestWillBeSent")]

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the answer of one method of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session and not method.startswith("Target."):
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            pass
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def _named(self, *methods: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["method"] in methods]

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reading], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._reading, 1 << 20)
            assert part, "the browser has gone"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message and message.get("sessionId") == self._session:  # a page before may still say something
            self.events.append(message)
        return message


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Yield a browser whose profile is in `folder`; a machine without Chromium fails the test."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    assert program, f"the pages of reports are tested in a browser: install one of {', '.join(NAMES)}"
    (its_input, our_output), (our_input, its_output) = os.pipe(), os.pipe()
    command = [program, *OPTIONS, f"--user-data-dir={folder}", "about:blank"]
    # The protocol's pipe is file descriptors 3 and 4.
    shell = ["bash", "-c", f'exec "$@" 3<&{its_input} 4>&{its_output}', "bash", *command]
    process = subprocess.Popen(shell, pass_fds=(its_input, its_output), stderr=subprocess.DEVNULL)
    os.close(its_input)
    os.close(its_output)
    try:
        yield Browser(our_input, our_output)
    finally:
        process.terminate()
        process.wait(PATIENCE)
        os.close(our_output)
        os.close(our_input)
