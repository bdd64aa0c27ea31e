"""Verification ``standard-v1`` in NumPy and in C: without torch."""

from pp3shm.verify.batch import Request, Verified
from pp3shm.verify.keys import VerifyKeys
from pp3shm.verify.reference import RowResult, verify_row
from pp3shm.verify.verify import verify

__all__ = ["Request", "RowResult", "Verified", "VerifyKeys", "verify", "verify_row"]
