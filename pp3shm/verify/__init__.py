"""Verification ``standard-v1`` in NumPy: the definition of correct, without torch."""

from pp3shm.verify.keys import VerifyKeys
from pp3shm.verify.reference import RowResult, verify_row
from pp3shm.verify.verify import Request, Verified, verify

__all__ = ["Request", "RowResult", "Verified", "VerifyKeys", "verify", "verify_row"]
