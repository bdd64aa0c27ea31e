"""Verification in torch, on the CPU and on CUDA alike, from the page of a reply."""

try:
    import torch as _torch  # noqa: F401  one clear error instead of one per module
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise  # torch is there and broken: its own error says more
    raise ImportError(
        "pp3shm.gpu: expected torch, found none: pip install 'pp3shm[gpu]'",
        name="torch",
    ) from error

from pp3shm.gpu.result import VerifiedTensors
from pp3shm.gpu.scatter import DraftProbs, Fault, Mode
from pp3shm.gpu.target import target_probs
from pp3shm.gpu.verify import key_words, verify
from pp3shm.gpu.views import Page, ReplyTensors

__all__ = [
    "DraftProbs",
    "Fault",
    "Mode",
    "Page",
    "ReplyTensors",
    "VerifiedTensors",
    "key_words",
    "target_probs",
    "verify",
]
