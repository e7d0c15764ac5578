"""Jobs of several processes on PyTorch: all hear rank 0, and no two may flip the same coins."""

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch.distributed

Found = TypeVar("Found")


def broadcast(number: int) -> int:
    """The number of rank 0, on every rank: for `start_run(broadcast=)` in a job of torch.

    Raises:
        RuntimeError: torch.distributed has not been set up.
    """
    if not torch.distributed.is_initialized():
        raise RuntimeError("The ranks cannot hear each other before torch.distributed is set up.")
    box = [number]
    torch.distributed.broadcast_object_list(box, src=0)
    return box[0]


def refuse_shared_coins(coins: torch.Generator | None) -> None:
    """Compare the seed by which this rank draws with those of the others; all ranks call it.

    Args:
        coins: the generator of the sampler; None if it draws by that of the process.

    Raises:
        ValueError: two ranks draw by the same seed.
    """
    seed = (coins or torch.default_generator).initial_seed()
    # A seed tells who was drawn: it stays in its process.
    digest = hashlib.sha256(str(seed).encode()).digest()
    digests: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(digests, digest)
    if len(set(digests)) < len(digests):
        raise ValueError(
            "Ranks draw their batches from the same seed, each the same places of its share, and "
            "that is not Poisson sampling: give the sampler of each rank a torch.Generator of its "
            "own, seeded anew."
        )


def together(check: Callable[[], Found]) -> Found:
    """Do on every rank what may be refused on some; all ranks call it.

    A rank that went on alone would wait for the others, and would be told no more than that they
    are gone.

    Raises:
        ValueError: another rank was refused; it says which, and why.
        Exception: what was refused here.
    """
    found: Any = None
    refusal: Exception | None = None
    try:
        found = check()
    except Exception as error:
        refusal = error
    said: list[Any] = [None] * torch.distributed.get_world_size()
    here = None if refusal is None else f"{type(refusal).__name__}: {refusal}"
    torch.distributed.all_gather_object(said, here)
    if refusal is not None:
        raise refusal
    for rank, reason in enumerate(said):
        if reason is not None:
            raise ValueError(f"Rank {rank} was refused: {reason}")
    return cast(Found, found)
