"""Stands in for SGLang where a test is about the server's life, not the model: it starts tests/fake_server.py.

With this folder on PYTHONPATH, `python -m sglang.launch_server` takes a few of SGLang's flags and the fake server's.
"""
