"""The one exception that ends a command with one clear line instead of a traceback."""


class EyasError(Exception):
    """What went wrong, where (file, row or key), what was expected, what was found, and the remedy."""
