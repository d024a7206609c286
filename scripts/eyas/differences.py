"""Settings held against settings: what differs between those of a file and today's, in words, and a name for them all.

What differs makes a file stale, and the user decides. A name (`fingerprint`) keeps what must not be mixed apart: runs
of a training, of a window, of an engine's trials.
"""

import hashlib
from typing import Any

import orjson

from eyas.config import DECIDES_NOTHING


def differences(was: Any, now: Any, key: str = "") -> list[str]:
    """Each key that differs between two settings, as `options.min_score: 1 → 0.9`; dotted where nested."""
    if key in DECIDES_NOTHING:
        return []
    if isinstance(was, dict) and isinstance(now, dict):
        keys = [*was, *(k for k in now if k not in was)]
        return [
            d for k in keys for d in differences(was.get(k, _ABSENT), now.get(k, _ABSENT), f"{key}.{k}" if key else k)
        ]
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        return [d for k, (a, b) in enumerate(zip(was, now, strict=True)) for d in differences(a, b, f"{key}.{k}")]
    same = was == now and isinstance(was, bool) == isinstance(now, bool)
    return [] if same else [f"{key or 'settings'}: {_short(was)} → {_short(now)}"]


def fingerprint(*parts) -> str:
    """16 hex digits of what a run depends on: another one starts anew, in a folder of its own."""
    return hashlib.blake2b(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()


_ABSENT = object()


def _short(value: Any) -> str:
    text = "absent" if value is _ABSENT else orjson.dumps(value).decode()
    return text if len(text) <= 80 else f"{text[:60]}…{text[-15:]}"
