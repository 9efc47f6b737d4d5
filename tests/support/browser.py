"""A real headless Chromium, driven through its debugging pipe: the pages as a user sees them."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,900",
    "--remote-debugging-pipe",
)
# Text of the page with all that lives in shadow roots, which the page's own text leaves out.
_VISIBLE_TEXT = """
(() => {
  const seen = [];
  const visit = node => {
    if (node.nodeType === Node.TEXT_NODE) seen.push(node.textContent.trim());
    if (node.tagName === "STYLE" || node.tagName === "SCRIPT") return;
    if (node.shadowRoot) node.shadowRoot.childNodes.forEach(visit);
    node.childNodes.forEach(visit);
  };
  visit(document.body);
  return seen.filter(text => text).join("\\n");
})()
"""


class Page:
    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from, self._rest, self._number = to_browser, from_browser, b"", 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []  # what the browser reported by itself, of the domains that are enabled
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._message())
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(answer["error"]["message"])
                return dict(answer["result"])
            if "method" in answer:
                self.events.append(answer)

    def _message(self) -> bytes:
        while b"\0" not in self._rest:
            assert select.select([self._from], [], [], 120)[0], "the browser does not answer"
            block = os.read(self._from, 1 << 16)
            assert block, "the browser ended"
            self._rest += block
        message, _, self._rest = self._rest.partition(b"\0")
        return message

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def text(self) -> str:
        try:
            found = self.call("Runtime.evaluate", expression=_VISIBLE_TEXT, returnByValue=True)
        except RuntimeError:  # the page is just being replaced by the next
            return ""
        return str(found["result"].get("value", ""))

    def wait_for(self, *words: str, seconds: float = 120) -> str:
        """The text of the page, when all the words are in it."""
        until = time.monotonic() + seconds
        while True:
            text = self.text()
            missing = [word for word in words if word not in text]
            if not missing:
                return text
            assert time.monotonic() < until, f"{missing} did not appear in:\n{text}"
            time.sleep(0.5)

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Page]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program is not None, "no chromium: `make system-packages` installs it"
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()

    def pipes_in_place() -> None:  # the browser reads from 3 and writes to 4
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 100) for end in (theirs_in, theirs_out)]  # out of the way
        os.dup2(ends[0], 3)
        os.dup2(ends[1], 4)

    process = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={profile}"],
        close_fds=False,
        preexec_fn=pipes_in_place,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Page(ours_out, ours_in)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours_out)
        os.close(ours_in)
