"""A headless Chromium, spoken to over its debugging pipe (Chrome DevTools Protocol): no driver, no other package."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

# The text of a page, that of shadow roots included, which document.body.innerText leaves out.
_TEXT = """
(() => {
  const texts = [];
  const walk = (node) => {
    if (node.nodeType === Node.TEXT_NODE) { texts.push(node.textContent); return; }
    if (["SCRIPT", "STYLE", "TEMPLATE"].includes(node.nodeName)) return;
    if (node.shadowRoot) walk(node.shadowRoot);
    for (const child of node.childNodes) walk(child);
  };
  walk(document.body);
  return texts.map((text) => text.trim()).filter((text) => text).join("\\n");
})()
"""


def chromium() -> str | None:
    """The program, if there is one."""
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


class Page:
    """One page of a browser."""

    def __init__(self, commands: BinaryIO, answers: BinaryIO) -> None:
        self._commands, self._answers, self._number = commands, answers, 0
        self._session: str | None = None
        self.complaints: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._ask("Page.enable")
        self._ask("Runtime.enable")

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {} if self._session is None else {"sessionId": self._session}
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            if answer.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(answer["params"])[:500])

    def _read(self) -> dict[str, Any]:
        read = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser has gone"
            read += byte
        return dict(json.loads(read))

    def open(self, address: str) -> None:
        """Go to an address."""
        self._ask("Page.navigate", url=address)

    def turn(self, fragment: str) -> None:
        """Go to what is behind a # of the same address: nothing is loaded anew."""
        self.run(f"location.hash = {json.dumps(fragment)}")

    def run(self, script: str) -> Any:
        """The value of an expression."""
        return self._ask("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def text(self) -> str:
        """All text that the page holds."""
        return str(self.run(_TEXT))

    def wait(self, for_: Callable[[str], bool], seconds: float = 300) -> str:
        """The text of the page once it is as wanted; on a busy machine TensorBoard's scripts run for minutes."""
        end = time.monotonic() + seconds
        while not for_(text := self.text()):
            assert time.monotonic() < end, f"waited too long; the page says: {text[-2500:]}"
            time.sleep(0.5)
        return text

    def picture(self, path: Path, width: int = 1400, height: int = 900) -> None:
        """Save what is seen, as PNG."""
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        time.sleep(2)  # charts are drawn anew
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Page]:
    """A page in a fresh browser, which is gone afterwards."""
    read_commands, write_commands = os.pipe()
    read_answers, write_answers = os.pipe()
    # Without 3D, TensorBoard draws its lines as SVG; with it, by software, pictures showed none.
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-3d-apis", "--disable-dev-shm-usage"]
    flags += ["--hide-scrollbars", "--window-size=1400,900", f"--user-data-dir={profile}"]
    flags += ["--remote-debugging-pipe", "about:blank"]
    # Chromium reads its pipe from 3 and writes it to 4.
    script = f'exec 3<&{read_commands} 4>&{write_answers}; exec "$@"'
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", program, *flags],
        pass_fds=(read_commands, write_answers),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(read_commands)
    os.close(write_answers)
    try:
        with open(write_commands, "wb") as commands, open(read_answers, "rb") as answers:  # noqa: PTH123
            yield Page(commands, answers)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
