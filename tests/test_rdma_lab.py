"""The lab's own parts, without starting a guest."""

import gzip
import importlib.util
import lzma
import subprocess
import sys
from pathlib import Path

import pytest

LAB = Path(__file__).parents[1] / "tools" / "rdma-lab"


@pytest.fixture(scope="module")
def parts():
    """The modules kernel.py and lab.py, as they import each other."""
    sys.path.insert(0, str(LAB))
    try:
        for name in ("kernel", "lab"):
            spec = importlib.util.spec_from_file_location(name, LAB / f"{name}.py")
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
        yield sys.modules["kernel"], sys.modules["lab"]
    finally:
        sys.path.remove(str(LAB))
        for name in ("kernel", "lab"):
            sys.modules.pop(name, None)


def records(data):
    """Name -> (mode, content) of a cpio archive, read as the format's page says."""
    found, at = {}, 0
    while True:
        assert b"070701" == data[at : at + 6]
        numbers = [int(data[i : i + 8], 16) for i in range(at + 6, at + 110, 8)]
        size, length = numbers[6], numbers[11]
        name = data[at + 110 : at + 110 + length - 1].decode()
        begin = -(-(at + 110 + length) // 4) * 4
        if name == "TRAILER!!!":
            assert -(-begin // 4) * 4 == len(data)
            return found
        found[name] = (numbers[1], data[begin : begin + size])
        at = -(-(begin + size) // 4) * 4


def test_an_archive_holds_its_files_and_folders(parts):
    kernel, _ = parts
    files = {"bin": None, "bin/busybox": b"\x7fELF" + bytes(3), "init": b"", "x": b"1"}
    found = records(kernel.archive(files))
    assert list(files) == list(found)
    for name, data in files.items():
        mode, content = found[name]
        assert (data or b"") == content
        assert (0o040755 if data is None else 0o100755) == mode


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress], ids=["xz", "gzip"])
def test_a_kernel_is_found_in_its_image_whatever_stands_around_it(parts, pack):
    kernel, _ = parts
    elf = b"\x7fELF" + bytes(range(256)) * 64
    decoy = pack(b"not a kernel")
    assert elf == kernel.unpacked(b"MZ" + decoy + b"....." + pack(elf) + b"trailing")


def test_an_image_without_a_kernel_is_refused(parts):
    kernel, _ = parts
    with pytest.raises(kernel.LabError, match="expected a kernel packed"):
        kernel.unpacked(b"MZ" + lzma.compress(b"something else"))


def test_where_it_cannot_start_the_reason_is_told(parts, monkeypatch, capsys):
    _, lab = parts
    monkeypatch.setattr(lab.platform, "machine", lambda: "aarch64")
    assert lab.CANNOT_START == lab.main(["--", "true"])
    monkeypatch.setattr(lab.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(lab.os, "geteuid", lambda: 1000)
    assert lab.CANNOT_START == lab.main(["--", "true"])
    monkeypatch.setattr(lab.os, "geteuid", lambda: 0)
    monkeypatch.setattr(lab, "PACKAGES", {"no-such-program": "no-such-package"})
    assert lab.CANNOT_START == lab.main(["--", "true"])
    said = capsys.readouterr().err.splitlines()
    assert 3 == len(said)
    for line, part in zip(said, ("aarch64", "root", "no-such-package"), strict=True):
        assert line.startswith("rdma-lab: cannot start here: ")
        assert part in line


def test_without_a_kernel_it_cannot_start_either(parts, monkeypatch, capsys, tmp_path):
    kernel, lab = parts

    def refused(*_):
        raise kernel.LabError("apt-get: no route to host")

    monkeypatch.setattr(lab, "why_not", lambda *, install: "")  # noqa: ARG005
    monkeypatch.setattr(kernel, "_make", refused)
    monkeypatch.setenv("PP3_LAB_CACHE", str(tmp_path / "cache"))
    assert lab.CANNOT_START == lab.main(["--", "true"])
    assert "no route to host" in capsys.readouterr().err
    assert ["lock"] == [path.name for path in (tmp_path / "cache").iterdir()]


def test_a_command_is_handed_on_word_by_word(parts, monkeypatch, tmp_path):
    _, lab = parts
    words = ["sh", "-c", 'printf "%s\\n" "$0" "$1"', "a b", "it's $HOME"]
    monkeypatch.setenv("LANG", "a 'strange' one")
    args = lab._arguments([f"--folder={tmp_path}", "--", *words])
    script = lab.Lab(tmp_path, None, args)._script()
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True
    )
    assert "a b\nit's $HOME\n" == done.stdout


def test_the_guests_script_is_one_that_a_shell_can_read():
    subprocess.run(["sh", "-n", str(LAB / "init.sh")], check=True)
