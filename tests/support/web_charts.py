"""Keys that a page's reader presses."""

from __future__ import annotations

from tests.support.browser import Browser


def press(page: Browser, key: str, code: int) -> None:
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)
