"""One question a row, in a column that the configuration names: GSM8K, MATH-500, HumanEval and their like.

A row: {<column>: str, …}. The answers that the sets come with are left out: the target answers.
"""

from pydantic import Field

from eyas.adapters.base import Conversation
from eyas.adapters.turns import needed_text
from eyas.config import Strict

COLUMNS = None  # the options name the column; these sets are small


class Options(Strict):
    column: str = Field(description="The column that holds the question.")
    before: str = Field("", description="Text that is set before it.")
    after: str = Field("", description="Text that is set after it.")


def conversation(row: dict, options: Options) -> Conversation:
    question = needed_text(row, options.column)
    return Conversation([{"role": "user", "content": f"{options.before}{question}{options.after}"}])
