"""``pp3shm demo``: real text through every part, and proof that nothing was lost."""

import argparse
import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from pp3shm.demo.decode import Decoder
from pp3shm.demo.kills import CONNECT_S, Kills
from pp3shm.demo.link import DemoWorker, serve, worker_of
from pp3shm.demo.link import check as check_link
from pp3shm.demo.pair import DEFAULT_TEMPERATURE, ModelPair, build_ngram_pair
from pp3shm.demo.process import WorkerProcess
from pp3shm.demo.proof import Proof
from pp3shm.demo.report import DemoReport, Growth, printable, show, show_check
from pp3shm.demo.signals import held, orderly_end
from pp3shm.demo.target import COLDEST, HOTTEST
from pp3shm.demo.text import load_text
from pp3shm.engine import Engine
from pp3shm.errors import ConfigError
from pp3shm.layout.keyproof import load_key
from pp3shm.layout.profile import Profile

PROMPT_TOKENS = 24
NGRAM_TIMEOUT_S = 1.0
HF_TIMEOUT_S = 60.0
CHECK_ROUNDS = 6000
HF_CHECK_ROUNDS = 200


def run_demo(args: argparse.Namespace) -> int:
    """Decode, show, check.

    Args:
        args: of ``pp3shm demo``.

    Returns:
        0; 1 if the check of the distribution did not come out as it must.

    Raises:
        Pp3Error: an argument, text, model or part that cannot be used.
    """
    _check(args)
    check_link(args)
    _kills(args)  # refused now rather than later
    with orderly_end():
        return _demo(args, Console())


def _demo(args: argparse.Namespace, console: Console) -> int:
    begun = time.monotonic()
    pair = _pair(args)
    prompts = pair.prompts(args.requests, PROMPT_TOKENS)
    profile = _profile(args, pair, max(map(len, prompts)))
    console.print(
        printable(
            f"{pair.target_name} (held-out perplexity {pair.target_perplexity:.1f}) "
            f"with drafts of a {pair.draft_name} ({pair.draft_perplexity:.1f}), "
            f"vocabulary {profile.vocab}, ready in {time.monotonic() - begun:.1f} s"
        ),
        highlight=False,
        markup=False,
        emoji=False,
    )
    with held():
        folder = tempfile.TemporaryDirectory(prefix="pp3shm-demo-")
    with folder as directory:
        if args.serve is not None:
            serve(args, Path(directory), pair, profile, console.print)
        with _connected(args, Path(directory), pair, profile) as (engine, worker):
            return _run(args, console, pair, engine, worker, prompts)


@contextlib.contextmanager
def _connected(
    args: argparse.Namespace, directory: Path, pair: ModelPair, profile: Profile
) -> Iterator[tuple[Engine, DemoWorker]]:
    """Both running, whichever has to be first: a region is there before its worker."""
    at_region = args.link == "region"
    with contextlib.ExitStack() as stack:
        worker: DemoWorker
        if at_region:
            environment = pair.save_drafter(directory)
            key = load_key(args.key_file) if args.key_file is not None else None
            how = {"key": key, "region": True, "wait": args.wait}
            late = WorkerProcess(directory, profile, environment, **how)
            worker = late
        else:
            worker = stack.enter_context(worker_of(args, directory, pair, profile))
        engine = Engine.create(
            profile,
            worker=worker.address,
            psk=worker.key,
            proxy=args.proxy,
            wait=args.wait,
            connect_timeout_s=0 if at_region else CONNECT_S,
        )
        stack.enter_context(engine)
        if at_region:
            stack.enter_context(late)
            engine.wait_connected(CONNECT_S)
        yield engine, worker


def _check(args: argparse.Namespace) -> None:
    for place, value, low, high in (
        ("--depth", args.depth, 4, 5),
        ("--requests", args.requests, 1, 4),
        ("--tokens", args.tokens, 1, 100_000),
        ("--check-rounds", args.check_rounds or 0, 0, 10_000_000),
        ("--seed", args.seed, 0, 2**62),
    ):
        if not low <= value <= high:
            raise ConfigError(place, f"{low}..{high}", value)
    if (args.target is None) != (args.draft is None):
        found = "--target alone" if args.draft is None else "--draft alone"
        raise ConfigError("--target, --draft", "both or none", found)
    if args.temperature is None:
        args.temperature = DEFAULT_TEMPERATURE
    if not COLDEST <= args.temperature <= HOTTEST:  # NaN is not
        raise ConfigError(
            "--temperature", f"{COLDEST:g}..{HOTTEST:g}", args.temperature
        )
    if args.kill_proxy and args.link == "region":
        raise ConfigError("--kill-proxy", "--link socket", "--link region")
    if args.kill_proxy and args.proxy != "process":
        raise ConfigError("--kill-proxy", "--proxy process", f"--proxy {args.proxy}")


def _pair(args: argparse.Namespace) -> ModelPair:
    text = load_text(args.text)
    if args.target is None:
        return build_ngram_pair(text, temperature=args.temperature)
    from pp3shm.demo.hf import load_pair  # noqa: PLC0415 - only this needs torch

    return load_pair(args.target, args.draft, text, temperature=args.temperature)


def _profile(args: argparse.Namespace, pair: ModelPair, prompt: int) -> Profile:
    # A request ends by its last round, which may emit depth + 1 tokens too many.
    positions = prompt + args.tokens + args.depth + 1
    if pair.max_positions is not None and positions > pair.max_positions:
        room = pair.max_positions - prompt - args.depth - 1
        raise ConfigError("--tokens", f"at most {room} for these models", args.tokens)
    fields = pair.profile_fields
    return Profile.sampled(
        vocab=int(fields["vocab"]),
        depth=args.depth,
        max_slots=args.requests,
        max_positions=positions,
        id_map_sha256=str(fields["id_map_sha256"]),
        target_sha256=str(fields["target_sha256"]),
        draft_sha256=str(fields["draft_sha256"]),
    )


def _run(
    args: argparse.Namespace,
    console: Console,
    pair: ModelPair,
    engine: Engine,
    worker: DemoWorker,
    prompts: list[NDArray[np.int32]],
) -> int:
    """All that needs the worker."""
    kills = _kills(args)
    proof = None
    if args.check_rounds != 0:
        proof = Proof(
            _decoder(args, engine, pair, prompts),
            seed=args.seed,
            asked=args.check_rounds,
            usual=CHECK_ROUNDS if args.target is None else HF_CHECK_ROUNDS,
        )
    show(_decode(args, console, pair, engine, worker, prompts, kills), console)
    kills.mend(engine, worker)
    worker.expect_alive()
    if proof is None:
        return 0
    check = proof.make(_decoder(args, engine, pair, prompts))
    if not check.control_fails:
        worker.expect_alive()  # without its drafts nothing can be seen
    show_check(check, console)
    return 0 if check.emitted_passes and check.control_fails else 1


def _decode(
    args: argparse.Namespace,
    console: Console,
    pair: ModelPair,
    engine: Engine,
    worker: DemoWorker,
    prompts: list[NDArray[np.int32]],
    kills: Kills,
) -> DemoReport:
    decoder = _decoder(args, engine, pair, prompts)
    begun = time.monotonic()
    with Growth(console, [pair.decode(prompt) for prompt in prompts]) as growth:
        for _ in decoder.decode(args.tokens):
            texts = [pair.decode(text.emitted) for text in decoder.texts]
            growth.update(texts, _note(decoder))
            kills.look(decoder.tally, engine, worker)
    seconds = time.monotonic() - begun
    tally = decoder.tally
    return DemoReport(
        target_name=pair.target_name,
        draft_name=pair.draft_name,
        target_perplexity=pair.target_perplexity,
        draft_perplexity=pair.draft_perplexity,
        vocab=engine.profile.vocab,
        depth=args.depth,
        temperature=args.temperature,
        seconds=seconds,
        tokens=tally.tokens,
        rounds=tally.rounds,
        rows=tally.rows,
        judged=tally.judged,
        accepted=tally.accepted,
        overlap=tally.overlap,
        failed=dict(tally.failed),
        stages=tally.stages(),
        killed=kills.done,
    )


def _decoder(
    args: argparse.Namespace,
    engine: Engine,
    pair: ModelPair,
    prompts: list[NDArray[np.int32]],
) -> Decoder:
    timeout_s = NGRAM_TIMEOUT_S if args.target is None else HF_TIMEOUT_S
    return Decoder(engine, pair.target, prompts, seed=args.seed, timeout_s=timeout_s)


def _note(decoder: Decoder) -> str:
    tally = decoder.tally
    failed = sum(tally.failed.values())
    return f"{tally.tokens} tokens, {tally.rounds} rounds, {failed} failed"


def _kills(args: argparse.Namespace) -> Kills:
    wanted = (("worker", args.kill_worker), ("proxy", args.kill_proxy))
    names = [name for name, asked in wanted if asked]
    return Kills(names, args.tokens, args.requests, args.depth)
