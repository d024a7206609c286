"""An inert torchvision: its names can be imported, and nothing behind them works.

SGLang 0.5.23 imports torchvision at start, for processors of images and video that text models never use (its own
sglang/srt/{multimodal,configs}, and transformers' image processors). The real one pins its own build of torch, and
with it a CUDA build of several GB, so this one stands in front of it on PYTHONPATH.
"""

__version__ = "0.28.0"  # the one for torch 2.13


def __getattr__(name: str):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
