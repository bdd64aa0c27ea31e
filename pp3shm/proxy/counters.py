"""The counters a proxy keeps in the region, by name.

They live in the control segment, so that they outlast a proxy that is killed and are
the same for the one that follows it. A name's place in ``NAMES`` is its index there;
new names go to the end.
"""

from pp3shm.layout.validate import REASONS

NAMES = (
    "session_state",  # owner << 8 | SessionState, not a count
    "incident",  # 1 while the user has not reopened after an incident
    "reopen_asked",  # how often the user asked for a session again
    "reopen_done",  # how many of those the proxy has seen
    "sessions",  # HELLOs that were answered
    "dials_failed",
    "mismatches",
    "steps_sent",
    "resets_sent",
    "replies",  # accepted and published in time
    "late",  # well-formed, for a round resolved meanwhile
    "peer_died",  # rounds failed because the session was lost or absent
    "bad_request",  # requests in the region that were no STEP
    "error_frames",  # ERRORs the worker sent
    *REASONS,
    *(f"row_status_{status}" for status in range(1, 9)),
    "pump_returns",  # how often the pump came back to the interpreter
    "late_writes",  # RDMA: writes into a staging slot in quarantine
    "slots_quarantined",  # RDMA: staging slots ever put there
    "slots_held",  # RDMA: those that are there now, not a count
    "memory_regions",  # RDMA: registered now, not a count
)

INDEX = {name: index for index, name in enumerate(NAMES)}
