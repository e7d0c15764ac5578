"""Stand-ins for loaders and samplers: classes with the real ones' names and settings."""

from types import SimpleNamespace
from typing import Any

from dpledger_client import loaders, shuffle

TORCH = "torch.utils.data"
SIZE, BATCH = 60_000, 256  # as in docs/guide/sampling.md


def stand_in(name: str, *bases: type, **body: Any) -> type:
    """A class that goes by the name of another library's."""
    module, _, short = name.rpartition(".")
    return type(short, bases, {"__module__": module, "__qualname__": short, **body})


class Holding(SimpleNamespace):
    """Data that are made of other data."""

    def __len__(self) -> int:
        if "indices" in vars(self):
            return len(self.indices)
        return sum(map(len, self.datasets))


DataLoader = stand_in(f"{TORCH}.dataloader.DataLoader", SimpleNamespace)
Map = stand_in(f"{TORCH}.dataset.TensorDataset", list)
DataSubset = stand_in(f"{TORCH}.dataset.Subset", Holding)
DataConcat = stand_in(f"{TORCH}.dataset.ConcatDataset", Holding)
Stream = stand_in(f"{TORCH}.dataset.IterableDataset", list)
Sequential = stand_in(f"{TORCH}.sampler.SequentialSampler", SimpleNamespace)
Random = stand_in(f"{TORCH}.sampler.RandomSampler", SimpleNamespace)
Subset = stand_in(f"{TORCH}.sampler.SubsetRandomSampler", SimpleNamespace)
Weighted = stand_in(f"{TORCH}.sampler.WeightedRandomSampler", SimpleNamespace)
Batch = stand_in(f"{TORCH}.sampler.BatchSampler", SimpleNamespace)
Distributed = stand_in(f"{TORCH}.distributed.DistributedSampler", SimpleNamespace)
Uniform = stand_in("opacus.utils.uniform_sampler.UniformWithReplacementSampler", SimpleNamespace)
DistributedUniform = stand_in(
    "opacus.utils.uniform_sampler.DistributedUniformWithReplacementSampler", SimpleNamespace
)
Splitting = stand_in("opacus.utils.batch_memory_manager.BatchSplittingSampler", SimpleNamespace)
Seedable = stand_in("accelerate.data_loader.SeedableRandomSampler", Random)
Sharded = stand_in("accelerate.data_loader.BatchSamplerShard", Batch)
Skipping = stand_in("accelerate.data_loader.SkipBatchSampler", Batch)
ShardLoader = stand_in("accelerate.data_loader.DataLoaderShard", SimpleNamespace)
SkipLoader = stand_in("accelerate.data_loader.SkipDataLoader", SimpleNamespace)
Fabric = stand_in("lightning.fabric.wrappers._FabricDataLoader", SimpleNamespace)
Grouped = stand_in("transformers.trainer_pt_utils.LengthGroupedSampler", SimpleNamespace)


def data(size: int = SIZE) -> Any:
    return Map([0] * size)


TWICE = data(3)


def random(size: int = SIZE, *, replacement: bool = False, num_samples: int | None = None) -> Any:
    return Random(data_source=data(size), replacement=replacement, _num_samples=num_samples,
                  generator=object())  # fmt: skip


def batches(sampler: Any, *, size: int = BATCH, drop_last: bool = False) -> Any:
    return Batch(sampler=sampler, batch_size=size, drop_last=drop_last)


def loader(batch_sampler: Any, *, of: Any = None, sampler: Any = None, kind: Any = None) -> Any:
    return (kind or DataLoader)(
        dataset=data() if of is None else of, batch_sampler=batch_sampler, sampler=sampler,
        num_workers=2, batch_size=BATCH, drop_last=False,
    )  # fmt: skip


def distributed(size: int = SIZE, *, ranks: int = 4, **options: Any) -> Any:
    settings = {"shuffle": True, "drop_last": True, "seed": 0, "epoch": 0, **options}
    share = size // ranks if settings["drop_last"] else -(-size // ranks)
    return Distributed(
        dataset=data(size), num_replicas=ranks, rank=1, total_size=share * ranks, **settings
    )


def sharded(inner: Any, **options: Any) -> Any:
    settings = {"num_processes": 4, "split_batches": False, "even_batches": True, **options}
    return Sharded(batch_sampler=inner, **settings)


RATE = 1 / 235
EACH_PASS = shuffle(batch_size=BATCH, steps_per_pass=235)


def found(what: Any, size: int | None = SIZE, **options: Any) -> dict[str, Any]:
    finding = loaders.inspect(what, declared=None, dataset_size=size, **options)
    assert finding.status == "detected", finding.reason
    return finding.sampling


SHUFFLED = loader(batches(random()))
COINS = loader(Uniform(num_samples=SIZE, sample_rate=RATE))
