"""``pp3shm bench``: the latency of a round beside other transports, in one run.

``plan.py`` names the subjects; ``floors.py``, ``ours.py`` and ``peers.py`` make them,
``measure.py`` times them, ``report.py`` and ``picture.py`` show what came out.
"""
