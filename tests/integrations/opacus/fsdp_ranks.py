"""One of two processes whose parameters FSDP shards between them, over gloo."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
from dpledger_client import BudgetExhausted, Client
from dpledger_client.integrations.opacus import LedgerAccountant, broadcast
from opacus import PrivacyEngine
from opacus.utils.fsdp_utils import FSDP2Wrapper
from opacus_loops import Job, equal, network, train, train_in_parts
from opacus_ranks import RANKS, data, error_of, joined
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.data import DataLoader

NOISE, NORM = 2.0, 1.5
MEASURED = 6  # steps whose noise is looked at


def wide() -> nn.Module:
    """With parameters enough to measure noise by."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 10))


def prepared(
    rank: int,
    accountant: Any,
    *,
    model: Any = None,
    seed: int | None = None,
    noise: float = 1.0,
    norm: float = 1.0,
    **options: Any,
) -> Job:
    torch.manual_seed(0)  # the same weights on all ranks
    model = FSDP2Wrapper(network()) if model is None else model
    torch.manual_seed(rank if seed is None else seed)  # but coins of their own
    engine = PrivacyEngine()
    if accountant is not None:
        engine.accountant = accountant
    loader = options.pop("loader", None) or DataLoader(data(), batch_size=90)
    model, optimizer, criterion, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=noise,
        max_grad_norm=norm,
        criterion=nn.CrossEntropyLoss(),
        grad_sample_mode="ghost_fsdp",
        **options,
    )
    return Job(engine, model, optimizer, loader, criterion)


def weights(job: Job) -> list[torch.Tensor]:
    """Whole, from all ranks."""
    return [one.detach().full_tensor().clone() for one in job.model.parameters()]


def both(rank: int, run: Any, loop: Callable[[Job], None]) -> Any:
    """The same training without a ledger and with one."""
    alone = prepared(rank, None)
    loop(alone)
    job = prepared(rank, LedgerAccountant(run))
    loop(job)
    return run.next_step, weights(alone), weights(job)


def sharded(rank: int, run: Any) -> Any:
    return both(rank, run, train)


def refused(rank: int, run: Any) -> Any:
    job = prepared(rank, LedgerAccountant(run))
    for images, labels in job.loader:
        job.optimizer.zero_grad()
        job.criterion(job.model(images), labels).backward()
        before = weights(job)
        try:
            job.optimizer.step()
        except BudgetExhausted:
            return run.next_step, before, weights(job)
    return None


def noise(rank: int, run: Any, coins: Callable[[], torch.Generator]) -> Any:
    """What is added on this rank, in units of how far a record moves the gradient there."""
    job = prepared(
        rank,
        LedgerAccountant(run),
        model=FSDP2Wrapper(wide()),
        noise=NOISE,
        norm=NORM,
        noise_generator=coins(),
    )
    optimizer, added, add = job.optimizer, [], job.optimizer.add_noise

    def measured() -> None:
        sums = [optimizer.grad_state[one]["summed_grad"].to_local() for one in optimizer.params]
        before = [one.clone() for one in sums]
        add()
        after = [one.grad.to_local() for one in optimizer.params]
        added.append(torch.cat([(b - a).flatten() for a, b in zip(before, after, strict=True)]))

    optimizer.add_noise = measured
    moved = record_moves(rank, job)
    for number, (images, labels) in enumerate(job.loader):
        if number == MEASURED:
            break
        job.optimizer.zero_grad()
        job.criterion(job.model(images), labels).backward()
        job.optimizer.step()
    return moved, torch.stack(added) / moved


def record_moves(rank: int, job: Job) -> float:
    """How far the gradient moves, over all shards, if rank 0 draws one clipped record less."""
    images, labels = data()[:8]

    def gradient(records: int) -> torch.Tensor:
        job.optimizer.zero_grad()
        job.criterion(job.model(images[:records] * 1000), labels[:records]).backward()
        return torch.cat([one.grad.full_tensor().flatten() for one in job.optimizer.params])

    moved = float((gradient(8) - gradient(8 if rank else 7)).norm())
    job.optimizer.zero_grad()
    return moved


def own_noise(rank: int, run: Any) -> Any:
    return noise(rank, run, lambda: torch.Generator().manual_seed(rank))


def one_noise(rank: int, run: Any) -> Any:
    return noise(rank, run, lambda: torch.Generator().manual_seed(9))


def sums(rank: int, run: Any) -> Any:
    """FSDP adds gradients up, while Opacus divides the noise by the ranks."""
    model = FSDP2Wrapper(network())
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
    return error_of(lambda: prepared(rank, LedgerAccountant(run), model=model)), run.next_step


def sums_later(rank: int, run: Any) -> Any:
    """The same, said after the optimizer was attached; gloo itself adds nothing up."""
    job = prepared(rank, LedgerAccountant(run))
    images, labels = next(iter(job.loader))
    job.criterion(job.model(images), labels).backward()
    for module in job.model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
    return error_of(job.optimizer.step), run.next_step


def replicas(rank: int, run: Any) -> Any:
    """Two copies of one shard each: their noise is not one noise."""
    mesh = init_device_mesh("cpu", (RANKS, 1), mesh_dim_names=("replicas", "shards"))
    model = network()
    for module in (model[0], model[4], model):
        fully_shard(module, mesh=mesh)
    return error_of(lambda: prepared(rank, LedgerAccountant(run), model=model)), run.next_step


def in_parts(rank: int, run: Any) -> Any:
    """Of batches whose sizes differ between the ranks."""
    job = prepared(rank, LedgerAccountant(run))
    before = weights(job)
    error = error_of(lambda: train_in_parts(job, part=20))
    return error, run.next_step, equal(before, weights(job))


def one_is_refused(rank: int, run: Any) -> Any:
    """Rank 1 alone cannot be counted: its loader has no size that the ledger could know."""
    if rank:
        run.dataset_size = None
    return error_of(lambda: train(prepared(rank, LedgerAccountant(run)))), run.next_step


def work(rank: int, url: str, names: dict[str, tuple[str, str]], folder: str) -> None:
    """Each scenario in turn."""
    client = Client(url)
    with joined(rank, folder) as happened:
        for what, scenario in SCENARIOS.items():
            name, dataset = names[what]
            place = {"rank": rank, "world_size": RANKS, "broadcast": broadcast}
            run = client.start_run(name, dataset, delta=1e-5, **place)
            happened[what] = scenario(rank, run)
            run.finish()
            torch.distributed.barrier()


SCENARIOS: dict[str, Callable[[int, Any], Any]] = {
    "sharded": sharded,
    "refused": refused,
    "own_noise": own_noise,
    "one_noise": one_noise,
    "sums": sums,
    "sums_later": sums_later,
    "replicas": replicas,
    "in_parts": in_parts,
    "one_is_refused": one_is_refused,
}
