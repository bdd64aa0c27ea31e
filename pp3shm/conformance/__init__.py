"""Known-answer files of the wire page's formats, run against this library."""

# Each module here has ``FORMATS``: a file's stem -> the check of one of its cases.
MODULES = ("pp3shm.conformance.frames", "pp3shm.conformance.numbers")
