"""Verification and proposals in torch and Triton, from the page of a reply.

Two verifiers of one law: :class:`DraftProbs` and :func:`verify` are dense and plain
torch, the readable one and what a sampler of one's own needs; :class:`SparseVerifier`
is fused, in Triton, and makes no dense q. Triton is loaded when it is asked for.
"""

try:
    import torch as _torch  # noqa: F401  one clear error instead of one per module
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise  # torch is there and broken: its own error says more
    raise ImportError(
        "pp3shm.gpu: expected torch, found none: pip install 'pp3shm[gpu]'",
        name="torch",
    ) from error

from pp3shm.gpu.carrier import DraftLogits
from pp3shm.gpu.pinned import Pinned, pin
from pp3shm.gpu.propose import ChainTensors, Proposer, Refusal
from pp3shm.gpu.result import VerifiedTensors
from pp3shm.gpu.scatter import DraftProbs, Fault, Mode
from pp3shm.gpu.sparse import SparseVerifier
from pp3shm.gpu.target import target_probs
from pp3shm.gpu.verify import key_words, verify
from pp3shm.gpu.views import Page, ReplyTensors

__all__ = [
    "ChainTensors",
    "DraftLogits",
    "DraftProbs",
    "Fault",
    "Mode",
    "Page",
    "Pinned",
    "Proposer",
    "Refusal",
    "ReplyTensors",
    "SparseVerifier",
    "VerifiedTensors",
    "key_words",
    "pin",
    "target_probs",
    "verify",
]
