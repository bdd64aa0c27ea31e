"""``pp3shm doctor``: every line, with what it looks at there, missing and broken."""

import errno
import logging
import os
import re
import resource
import types
from pathlib import Path

import pytest
from commands import run

from pp3shm import doctor
from pp3shm._core import lib
from pp3shm.errors import ConfigError

NOTHING = object()


def lines_of(done):
    return {line.split()[1]: line for line in done.out.splitlines()}


def port(root, device="rxe0", state="4: ACTIVE", gids=None):
    """One port of one device, as sysfs shows it."""
    at = root / device / "ports" / "1"
    (at / "gids").mkdir(parents=True)
    (at / "gid_attrs" / "types").mkdir(parents=True)
    (at / "state").write_text(f"{state}\n")
    for index, (gid, kind) in enumerate(gids or []):
        (at / "gids" / str(index)).write_text(f"{gid}\n")
        (at / "gid_attrs" / "types" / str(index)).write_text(f"{kind}\n")


ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
MAPPED = "0000:0000:0000:0000:0000:ffff:0a63:0001"


def test_there_is_one_line_for_every_check_in_their_order():
    done = run("doctor")
    assert (0, "") == (done.status, done.err)
    assert list(doctor.CHECKS) == [line.split()[1] for line in done.out.splitlines()]
    assert {"ok", "missing"} >= {line.split()[0] for line in done.out.splitlines()}


def test_what_is_missing_says_what_to_do():
    for line in run("doctor").out.splitlines():
        word, _, *rest = line.split()
        assert rest
        assert word == "ok" or ": " in line


@pytest.mark.parametrize("name", list(doctor.CHECKS))
def test_the_status_is_1_only_where_what_was_required_is_missing(name):
    table = {
        other: lambda: doctor.there("here") for other in doctor.CHECKS if other != name
    }
    table[name] = lambda: doctor.missing("gone", "buy one")
    said = []
    assert [name] == doctor.examine([name], said.append, table)
    assert f"missing {name:<9}gone: buy one" in said
    others = [other for other in table if other != name]
    assert [] == doctor.examine(others, said.append, table)


def test_a_command_that_requires_what_is_there_ends_with_0_and_else_with_1():
    done = run("doctor", "--require", "futex")
    there = lines_of(done)["futex"].startswith("ok")
    assert (0 if there else 1) == done.status
    missing = [n for n, line in lines_of(done).items() if line.startswith("missing")]
    if not missing:
        pytest.skip("nothing is missing on this machine")
    done = run("doctor", *(f"--require={name}" for name in missing))
    assert 1 == done.status
    assert f"pp3shm doctor: missing: {', '.join(missing)}\n" == done.err


def test_an_unknown_requirement_is_refused_before_anything_is_looked_at():
    said = []
    with pytest.raises(ConfigError, match=r"--require: expected rdma or .*'luck'"):
        doctor.examine(["rdma", "luck"], said.append)
    assert [] == said
    assert 2 == run("doctor", "--require", "luck").status


# -- RDMA ------------------------------------------------------------------------------


def test_rdma_names_device_port_state_and_each_gid_in_use(monkeypatch, tmp_path):
    port(tmp_path, gids=[(ZERO, ""), (MAPPED, "RoCE v2")])
    monkeypatch.setattr(doctor.gids, "INFINIBAND", tmp_path)
    found = doctor.rdma_devices()
    assert found.there
    assert "rxe0 port 1 4: ACTIVE, GID 1 10.99.0.1 (RoCE v2)" == found.found


@pytest.mark.parametrize(
    ("state", "gids", "says"),
    [
        ("1: DOWN", [(MAPPED, "RoCE v2")], "bring its link up"),
        ("4: ACTIVE", [(ZERO, "RoCE v2")], "no GID"),
        ("4: ACTIVE", [], "no GID"),
    ],
    ids=["down", "empty", "none"],
)
def test_a_port_that_carries_nothing_is_missing(
    monkeypatch, tmp_path, state, gids, says
):
    port(tmp_path, state=state, gids=gids)
    monkeypatch.setattr(doctor.gids, "INFINIBAND", tmp_path)
    found = doctor.rdma_devices()
    assert not found.there
    assert says in str(found)


def test_no_device_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.gids, "INFINIBAND", tmp_path / "none")
    assert (False, "no device") == doctor.rdma_devices()[:2]


def importing(monkeypatch, **modules):
    """What an import of each name gives: a module, an error, or NOTHING: not there."""

    def load(name):
        found = modules.get(name.partition(".")[0], NOTHING)
        if found is NOTHING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(doctor.importlib, "import_module", load)


def test_pyverbs_that_is_absent_broken_blind_or_well(monkeypatch):
    importing(monkeypatch)
    assert "apt install python3-pyverbs" in doctor.pyverbs().remedy
    importing(monkeypatch, pyverbs=ImportError("a page\nundefined symbol: ibv_x"))
    assert (False, "undefined symbol: ibv_x") == doctor.pyverbs()[:2]

    def listing(answer):
        def get_device_list():
            if isinstance(answer, Exception):
                raise answer
            return [types.SimpleNamespace(name=name) for name in answer]

        return types.SimpleNamespace(get_device_list=get_device_list)

    importing(monkeypatch, pyverbs=listing(RuntimeError("Failed to get devices list")))
    assert (False, "Failed to get devices list") == doctor.pyverbs()[:2]
    importing(monkeypatch, pyverbs=listing([]))
    assert not doctor.pyverbs().there
    importing(monkeypatch, pyverbs=listing([b"mlx5_0", b"mlx5_1"]))
    assert (True, "sees mlx5_0, mlx5_1") == doctor.pyverbs()[:2]


def test_a_look_at_pyverbs_leaves_the_programs_logging_alone(monkeypatch):
    root = logging.getLogger()
    before = root.handlers[:], root.level

    def load(name):
        root.addHandler(logging.NullHandler())
        root.setLevel(logging.DEBUG)
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(doctor.importlib, "import_module", load)
    assert not doctor.pyverbs().there
    assert before == (root.handlers, root.level)


@pytest.mark.parametrize(
    ("soft", "well"),
    [
        (resource.RLIM_INFINITY, True),
        (doctor.ROOM_BYTES, True),
        (doctor.ROOM_BYTES - 1, False),
        (0, False),
    ],
)
def test_memlock_is_missing_below_what_two_large_replies_need(monkeypatch, soft, well):
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda _: (soft, soft))
    assert well == doctor.memlock().there


# -- shared memory and the kernel ------------------------------------------------------


def test_shared_memory_that_is_small_closed_or_not_there(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "SHM", tmp_path)
    small = types.SimpleNamespace(f_bavail=1, f_frsize=4096)
    large = types.SimpleNamespace(f_bavail=1 << 20, f_frsize=4096)
    monkeypatch.setattr(doctor.os, "statvfs", lambda _: small)
    assert "--shm-size" in doctor.shared_memory().remedy
    monkeypatch.setattr(doctor.os, "statvfs", lambda _: large)
    assert doctor.shared_memory().there
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert "not writable" in doctor.shared_memory().found

    def gone(_):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(doctor.os, "statvfs", gone)
    assert "mount" in doctor.shared_memory().remedy


def test_a_kernel_that_refuses_a_call_is_named_with_its_reason(monkeypatch):
    def refuses(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(doctor.os, "pidfd_open", refuses)
    assert (False, "Function not implemented") == doctor.pidfd()[:2]
    monkeypatch.setattr(doctor.fcntl, "fcntl", refuses)
    assert (False, "Function not implemented") == doctor.seals()[:2]
    monkeypatch.setattr(doctor.os, "memfd_create", refuses)
    assert (False, "Function not implemented") == doctor.seals()[:2]
    assert before == len(list(Path("/proc/self/fd").iterdir()))


def test_a_futex_call_that_does_not_say_eagain_is_missing(monkeypatch):
    monkeypatch.setattr(doctor.platform, "machine", lambda: "riscv64")
    assert (False, "riscv64") == doctor.futex()[:2]
    monkeypatch.setattr(doctor.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(doctor.ctypes, "get_errno", lambda: errno.ENOSYS)
    assert (False, "Function not implemented") == doctor.futex()[:2]


def test_cpu_tells_flags_and_paths(monkeypatch, tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("flags : fpu avx2 pclmulqdq\n")
    monkeypatch.setattr(doctor, "CPUINFO", info)
    monkeypatch.setattr(doctor.platform, "machine", lambda: "x86_64")
    found = doctor.cpu()
    assert found.there
    assert "x86_64, pclmulqdq avx2; CRC by" in found.found
    info.unlink()
    assert "no flag of interest; CRC by" in doctor.cpu().found
    monkeypatch.setattr(doctor.platform, "machine", lambda: "mips")
    assert not doctor.cpu().there


@pytest.mark.parametrize(
    ("paths", "header", "kind"),
    [
        (doctor.CRC_PATHS, "layout/crc.h", "pp3_crc_path"),
        (doctor.SCAN_PATHS, "proposal/scan.h", "pp3_scan_paths"),
    ],
)
def test_every_path_of_the_core_is_called_what_it_is(paths, header, kind):
    # of the checkout: the installed package has no sources
    checkout = Path(__file__).parents[1] / "pp3shm"
    text = (checkout / header).read_text("utf-8")
    (body,) = re.findall(rf"enum {kind} {{(.*?)}};", text, re.DOTALL)
    names = re.findall(r"^\s*PP3_(\w+)", body, re.MULTILINE)
    assert list(paths) == [name for name in names if name != "SCAN_PATHS"]
    for name, said in paths.items():
        assert said == doctor._named(lib, paths, getattr(lib, f"PP3_{name}"))
    assert "path 99" == doctor._named(lib, paths, 99)


# -- GPU -------------------------------------------------------------------------------


def torch_with(devices, code=0, calls=None):
    """A torch that has these devices, and a runtime that answers a registration."""

    def register(address, size, flags):
        calls.append(("register", address % size, flags))
        return code

    runtime = types.SimpleNamespace(
        cudaHostRegister=register,
        cudaHostUnregister=lambda _: calls.append(("unregister",)),
    )
    return types.SimpleNamespace(
        __version__="9.9",
        cuda=types.SimpleNamespace(
            is_available=lambda: bool(devices),
            device_count=lambda: len(devices),
            get_device_name=lambda index: devices[index],
            cudart=lambda: runtime,
        ),
    )


def test_packages_of_a_gpu_absent_broken_and_there(monkeypatch):
    importing(monkeypatch, triton=OSError("x\nlibcuda.so.1: cannot open"))
    assert "pip install 'pp3shm[gpu]'" == doctor.torch().remedy
    assert (False, "libcuda.so.1: cannot open") == doctor.triton()[:2]
    for check in (doctor.cuda, doctor.pinned):
        assert (False, "No module named 'torch'") == check()[:2]
    importing(monkeypatch, torch=torch_with([]))
    assert (True, "9.9") == doctor.torch()[:2]
    for check in (doctor.cuda, doctor.pinned):
        assert not check().there


def test_a_page_is_registered_with_a_cuda_device_and_given_back(monkeypatch):
    calls = []
    importing(monkeypatch, torch=torch_with(["H1", "H2"], 0, calls))
    assert (True, "H1, H2") == doctor.cuda()[:2]
    assert doctor.pinned().there
    assert [("register", 0, 0), ("unregister",)] == calls


def test_a_registration_that_is_refused_names_its_code(monkeypatch):
    calls = []
    importing(monkeypatch, torch=torch_with(["H1"], 712, calls))
    assert (False, "cudaHostRegister: error 712") == doctor.pinned()[:2]
    assert [("register", 0, 0)] == calls
