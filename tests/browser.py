"""Headless Chromium over its DevTools pipe: what a page asks for, says, draws and shows a screen reader."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--remote-debugging-pipe"),
)
PATIENCE_S = 120  # a machine under load starts a browser slowly


def chromium() -> str | None:
    """The path of a Chromium, or None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One tab. `events` are all that the page sent, in order."""

    def __init__(self) -> None:
        path = chromium()
        assert path is not None
        self.events: list[dict] = []
        self._answers: dict[int, dict] = {}
        self._rest, self._last, self._session = b"", 0, None
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        # Chromium reads descriptor 3 and writes 4; copies above 10 can't be in the way of either.
        high = [fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (theirs_in, theirs_out)]

        def place() -> None:
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [path, *FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"],
            preexec_fn=place,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for one in (theirs_in, theirs_out, *high):
            os.close(one)
        self._in, self._out = ours_in, ours_out
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        """Ends the process that was started here."""
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._folder.cleanup()

    def ask(self, method: str, **params: object) -> dict:
        """The answer of one command; AssertionError where the browser refuses it or stays silent."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        self._until(lambda: self._last in self._answers)
        answer = self._answers.pop(self._last)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, page: Path) -> None:
        """Loads a file to its end."""
        self.events.clear()
        self.ask("Page.navigate", url=page.as_uri())
        self._until(lambda: any(one["method"] == "Page.loadEventFired" for one in self.events))

    def value(self, expression: str) -> object:
        """What a JavaScript expression gives, which our pages' own policy would refuse to run."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def pdf(self) -> bytes:
        """The page printed."""
        return base64.b64decode(self.ask("Page.printToPDF")["data"])

    def _until(self, is_there) -> None:
        end = time.monotonic() + PATIENCE_S
        while not is_there():
            ready, _, _ = select.select([self._in], [], [], max(0, end - time.monotonic()))
            assert ready, "the browser is silent"
            read = os.read(self._in, 1 << 20)
            assert read, "the browser ended"
            *whole, self._rest = (self._rest + read).split(b"\0")
            for message in map(json.loads, whole):
                if "id" in message:
                    self._answers[message["id"]] = message
                else:
                    self.events.append(message)
