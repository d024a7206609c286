"""SWE-agent-trajectories: several agent runs for each of some 3,600 issues.

A row: {"instance_id", "model_name", "target", "trajectory": [{"cutoff_date", "mask", "role": "system" | "user" | "ai",
"system_prompt", "text"}, …], "exit_status", "generated_patch", "eval_logs"}. The system entry has text null and
its words in system_prompt. Runs of one issue are repeats of one another.
"""

from eyas.adapters.base import Conversation, Rejected
from eyas.adapters.turns import needed, parse_turns

COLUMNS = ("instance_id", "trajectory")


def conversation(row: dict, options) -> Conversation:
    issue = row.get("instance_id")
    if not isinstance(issue, str) or not issue:
        raise Rejected("missing_field", f"instance_id is {issue!r}")
    trajectory = needed(row, "trajectory")
    if isinstance(trajectory, list):
        trajectory = [_with_system_words(t) for t in trajectory]
    messages = parse_turns(trajectory, field="trajectory", content="text")
    return Conversation(messages, key=issue, meta={"instance_id": issue})


def _with_system_words(entry):
    if isinstance(entry, dict) and entry.get("role") == "system" and not entry.get("text"):
        return {**entry, "text": entry.get("system_prompt")}
    return entry
