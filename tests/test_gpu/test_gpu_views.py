"""A page as torch tensors."""

import gc
import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pp3shm.errors import ConfigError
from pp3shm.gpu import Page
from pp3shm.gpu.views import signed
from pp3shm.layout.reply import ReplyLayout

VECTORS = Path(__file__).parents[1] / "vectors"
FIELDS = ("round", "status", "tokens", "confidence", "mask", "ids", "q")


def _cases():
    cases = json.loads((VECTORS / "pages.json").read_text())["cases"]
    layouts = {
        ReplyLayout(4, depth, sampled=sampled).size: (depth, sampled)
        for depth in (4, 5)
        for sampled in (False, True)
    }
    for case in cases:
        page = bytearray.fromhex(case["page"])
        depth, sampled = layouts[len(page)]
        yield pytest.param(page, depth, sampled, id=case["base"])


@pytest.mark.parametrize(("page", "depth", "sampled"), list(_cases()))
def test_tensors_hold_the_bytes_that_the_layout_names(device, page, depth, sampled):
    """Every field of every page among the vectors, bit by bit."""
    layout = ReplyLayout(4, depth, sampled=sampled)
    tensors = Page(layout, page, device).load()
    for name in FIELDS:
        expected, found = getattr(layout.views(page), name), getattr(tensors, name)
        if expected is None:
            assert found is None
            continue
        assert expected.shape == tuple(found.shape)
        assert expected.tobytes() == found.cpu().numpy().tobytes(), name


def test_cpu_tensors_follow_the_page_without_a_copy():
    layout = ReplyLayout(4, 5, sampled=True)
    page = bytearray(layout.size)
    tensors = Page(layout, page).load()
    layout.views(page).tokens[2, 3] = 77
    layout.views(page).round[()] = 2**64 - 5
    assert tensors.tokens[2, 3].item() == 77
    assert tensors.round.item() == signed(2**64 - 5) == -5


def test_a_page_mapped_read_only_is_viewed_without_copy_or_warning():
    """Ranks map pages read-only; warnings are errors in this suite."""
    layout = ReplyLayout(4, 5, sampled=True)
    fd = os.memfd_create("page")
    os.ftruncate(fd, 65536)
    writer = mmap.mmap(fd, 65536)
    reader = memoryview(mmap.mmap(fd, 65536, prot=mmap.PROT_READ))
    os.close(fd)
    assert reader.readonly
    tensors = Page(layout, reader).load()
    layout.views(writer).q[3, 4, 31] = 0.25
    assert tensors.q[3, 4, 31].item() == 0.25


def test_tensors_keep_the_page_alive():
    """A mapping that is still viewed cannot be closed under the tensors."""
    layout = ReplyLayout(1, 4, sampled=True)
    mapping = mmap.mmap(-1, 65536)
    tensors = Page(layout, mapping).load()
    gc.collect()
    with pytest.raises(BufferError):
        mapping.close()
    assert tensors.status.tolist() == [0]


def test_a_loaded_device_page_changes_only_when_loaded_again(device):
    if device == "cpu":
        pytest.skip("the CPU's tensors are the page")
    layout = ReplyLayout(4, 5, sampled=True)
    array = np.zeros(layout.size, np.uint8)
    page = Page(layout, array, device)
    tensors = page.load()
    torch.cuda.synchronize()
    layout.views(array.data).tokens[:] = 9
    assert not tensors.tokens.any().item()
    page.load()
    assert (tensors.tokens == 9).all().item()


@pytest.mark.parametrize("size", [0, 5319])
def test_a_page_that_is_too_small_is_refused_by_its_size(size):
    with pytest.raises(ConfigError, match=f"page: .*5320.*found {size}"):
        Page(ReplyLayout(4, 5, sampled=True), bytearray(size))


def test_a_page_off_its_alignment_is_refused():
    layout = ReplyLayout(4, 5, sampled=True)
    mapping = memoryview(mmap.mmap(-1, 65536))
    with pytest.raises(ConfigError, match="divisible by 8"):
        Page(layout, mapping[4 : 4 + layout.size])


def test_import_without_torch_names_the_extra():
    code = "import sys; sys.modules['torch'] = None; import pp3shm.gpu"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == (
        "ImportError: pp3shm.gpu: expected torch, found none: pip install 'pp3shm[gpu]'"
    )


def test_import_of_the_package_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None; "
        "import pp3shm, pp3shm.rng, pp3shm.layout.reply"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
