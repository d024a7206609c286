"""How far a long job is: a bar on a terminal, a plain line every half minute in a log."""

import logging
import sys
import time

EVERY_S = 30.0


class Progress:
    """Counts items of work that is measured by the fraction done.

    `update` may be called as often as one likes; it speaks at most twice a second on a terminal and
    every EVERY_S seconds elsewhere.
    """

    def __init__(self, label: str, unit: str, stream=None):
        self.label, self.unit, self.stream = label, unit, stream or sys.stderr
        self.terminal = self.stream.isatty()
        self.start = self.spoken = time.monotonic()
        self.count = 0

    def update(self, count: int, fraction: float, note: str = "") -> None:
        """`count`: items so far; `fraction`: share of the whole work, 0 to 1; `note`: what else to say."""
        self.count = count
        now = time.monotonic()
        if now - self.spoken >= (0.5 if self.terminal else EVERY_S):
            self.spoken = now
            line = self._line(fraction, now) + (f", {note}" if note else "")
            if self.terminal:
                filled = int(24 * min(fraction, 1.0))
                print(f"\r[{'#' * filled}{'.' * (24 - filled)}] {line}\x1b[K", end="", file=self.stream, flush=True)
            else:
                logging.info(line)

    def close(self) -> None:
        """End with a line of its own: items, rate, seconds."""
        if self.terminal and self.spoken > self.start:
            print("\r\x1b[K", end="", file=self.stream, flush=True)
        seconds = time.monotonic() - self.start
        logging.info(
            "%s: %s %s in %.1f s (%s/s)",
            self.label,
            f"{self.count:,}",
            self.unit,
            seconds,
            f"{self.count / max(seconds, 1e-9):,.0f}",
        )

    def _line(self, fraction: float, now: float) -> str:
        elapsed = now - self.start
        left = f", {duration(elapsed * (1 - fraction) / fraction)} left" if fraction > 0 else ""
        return (
            f"{self.label}: {fraction:.0%}, {self.count:,} {self.unit}, {self.count / max(elapsed, 1e-9):,.0f}/s{left}"
        )


def duration(seconds: float) -> str:
    """Seconds in words: 42 s, 3 min 5 s, 2 h 10 min."""
    s = round(seconds)
    if s < 60:
        return f"{s} s"
    if s < 3600:
        return f"{s // 60} min {s % 60} s"
    return f"{s // 3600} h {s % 3600 // 60} min"
