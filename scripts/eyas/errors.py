"""The one exception that ends a command with one clear line instead of a traceback."""


class EyasError(Exception):
    """What went wrong, where (file, row or key), what was expected, what was found, and the remedy."""


def first_line(error: Exception) -> str:
    """What a library's error says, without the pages that may follow; its kind when it says nothing."""
    return (str(error) or type(error).__name__).splitlines()[0]
