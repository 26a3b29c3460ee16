"""PRISM: a KServe predictor that embeds vLLM and decides admission order and KV retention together."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("prism-kserve")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"
