"""What ``pp3shm ls`` says, as lines and as JSON."""

import json
from collections.abc import Iterator

from pp3shm.ring.survey import Found, Survey


def as_lines(found: Survey) -> Iterator[str]:
    """A line for each region and each of its holders, with their own words in it."""
    if not found.regions:
        yield "no regions"
    for region in found.regions:
        yield _line(region)
        for one in region.holders:
            yield f"    {one.role:<6}  pid {one.pid}  {one.command}"
    if found.unseen:
        yield f"processes that may not be looked into: {found.unseen}"


def _line(region: Found) -> str:
    parts = [f"{region.name}  {region.kind}", region.life]
    if region.kind == "posix" and not region.linked:
        parts.append("no names")
    if region.fault is not None:
        return ", ".join([*parts, region.fault])
    parts.append(f"{region.bytes:,} bytes")
    parts.append(f"{region.open} of {region.rounds} rounds in flight")
    kept = "?" if region.quarantined is None else region.quarantined
    parts.append(f"{kept} of {region.pages} pages in quarantine")
    return ", ".join(parts)


def as_json(found: Survey) -> str:
    """The same as one object, with the newest ticket of each region."""
    return json.dumps(
        {
            "regions": [_region(region) for region in found.regions],
            "processes_not_looked_into": found.unseen,
        },
        indent=2,
    )


def _region(region: Found) -> dict[str, object]:
    known = region.fault is None
    return {
        "name": region.name,
        "kind": region.kind,
        "names_in_dev_shm": region.linked,
        "life": region.life,
        "bytes": region.bytes if known else None,
        "rounds": region.rounds if known else None,
        "rounds_in_flight": region.open if known else None,
        "newest_ticket": region.newest if known else None,
        "pages": region.pages if known else None,
        "pages_in_quarantine": region.quarantined if known else None,
        "holders": [
            {"pid": one.pid, "role": one.role, "command": one.command}
            for one in region.holders
        ],
        "fault": region.fault,
    }
