"""A rendered conversation before tokenization."""

from dataclasses import dataclass, field

CONTEXT, ANSWER = 0, 1

Item = int | str  # a control token's id, or plain text


class NotRenderable(Exception):
    """The target's chat format has no form for this conversation: `reason` is counted, `detail` says why."""

    def __init__(self, reason: str, detail: str):
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


@dataclass
class Plan:
    """items [n] with marks [n]; `after_first_user`: index of the first item behind the first user message.

    left_out: reasonings of the conversation for which the target's format has no place.
    """

    items: list[Item] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    after_first_user: int | None = None
    left_out: int = 0

    def add(self, mark: int, *items: Item) -> None:
        self.items += items
        self.marks += [mark] * len(items)

    def train_after_first_user(self) -> "Plan":
        """The same items; each one after the first user message is marked."""
        first = len(self.items) if self.after_first_user is None else self.after_first_user
        marks = [CONTEXT] * first + [ANSWER] * (len(self.items) - first)
        return Plan(self.items, marks, self.after_first_user, self.left_out)
