"""Waiting for what another process does."""

import time


def until(true, seconds=60):
    """Return once `true()` holds; fail when it does not come in time, which is generous: machines are busy."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.02)
