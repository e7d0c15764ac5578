"""The loaders and samplers that are known, and what their settings tell."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

Seen = dict[str, str | int | float | bool]
Reader = Callable[[object, Seen, int], "Read"]


class UnclearError(Exception):
    """A class is not known, or its settings do not tell what it does."""


@dataclass(frozen=True, slots=True)
class Read:
    """What the loaders of all ranks do together."""

    kind: Literal["poisson", "weighted", "with_replacement", "shuffle", "cyclic", "rest"]
    length: int  # of the data
    records: int = 0  # that may come up at all
    draws: int = 0  # of a pass
    batch_size: int = 1  # of all ranks
    parts: int = 1  # batches in one step, whose size is then that of all of them
    drop_last: bool = False
    rate: float = 0.0  # of Poisson draws; of the heaviest record
    once: bool = False  # one order for all passes
    own_order: bool = False  # each process draws another one
    # The order follows from a seed of the sampler and the number of the pass: others may know it,
    # and a pass that was broken off may come again.
    own_seed: bool = False
    epochs_unseen: bool = False  # `once`, unless the loop sets the epoch of each pass
    fault: str = ""  # why a record comes twice in a pass, or where it likes


def of_loader(loader: object, seen: Seen) -> Read:
    """Read a loader; `seen` gets its class names and settings.

    Raises:
        UnclearError: it is not known.
        ValueError: no sampling covers what it does.
    """
    name = _noted(loader, "loader", seen)
    if name in _HOLDERS:
        return _held(loader, name, seen)
    if name == _OURS:
        return _shuffled(loader, seen, int(_get(loader, "records")))
    if name != _LOADER:
        raise UnclearError(f"This class of loader is not known: {_full_name(type(loader))}.")
    _settings(loader, seen, "num_workers", "batch_size", "drop_last")
    data = _get(loader, "dataset")
    seen["dataset"] = _full_name(type(data))
    if _STREAM in map(_full_name, type(data).__mro__):
        raise UnclearError("A stream decides by itself which record comes when.")
    _refuse_repeated(data)
    batches = _get(loader, "batch_sampler")
    if batches is None and _known_name(_get(loader, "sampler")) not in _BATCHING:
        raise UnclearError("Without a batch size an element may be a whole batch.")
    read = _of_sampler(_get(loader, "sampler") if batches is None else batches, seen, _length(data))
    if read.kind in _PASSES and not getattr(loader, "in_order", True):
        return replace(read, fault="Batches come when they are ready, not in their order.")
    return read


def _held(loader: object, name: str, seen: Seen) -> Read:
    """A loader in a loader."""
    inner = of_loader(_get(loader, _HOLDERS[name]), seen)
    seen["wrapper"] = _full_name(type(loader))
    if getattr(loader, "skip_batches", 0):
        return replace(inner, kind="rest")
    if inner.epochs_unseen and name in _SET_EPOCHS:
        return replace(inner, once=False, epochs_unseen=False)
    return inner


def _of_sampler(sampler: object, seen: Seen, length: int) -> Read:
    name = _noted(sampler, "sampler", seen)
    if name in _GROUPING:
        raise ValueError(f"{name} makes batches by the lengths of records: no sampling covers it.")
    if name not in _SAMPLERS:
        raise UnclearError(f"This class of sampler is not known: {_full_name(type(sampler))}.")
    return _SAMPLERS[name](sampler, seen, length)


# Samplers of batches


def _batched(sampler: object, seen: Seen, length: int) -> Read:
    _settings(sampler, seen, "batch_size", "drop_last")
    size, drop_last = int(_get(sampler, "batch_size")), bool(_get(sampler, "drop_last"))
    inner = _of_sampler(_get(sampler, "sampler"), seen, length)
    return replace(inner, batch_size=inner.batch_size * size, drop_last=drop_last)


def _split(sampler: object, seen: Seen, length: int) -> Read:
    """Opacus' BatchMemoryManager: the parts of a batch are one step."""
    seen["splitter"] = _full_name(type(sampler))
    return _of_sampler(_get(sampler, "sampler"), seen, length)


def _sharded(sampler: object, seen: Seen, length: int) -> Read:
    """Accelerate: each rank takes some of the batches, or a part of each."""
    seen["shard"] = _full_name(type(sampler))
    _settings(sampler, seen, "num_processes", "split_batches", "even_batches")
    inner, ranks = _of_sampler(_get(sampler, "batch_sampler"), seen, length), _ranks(sampler)
    if inner.kind == "poisson" and ranks > 1:
        raise ValueError("Each rank makes a Poisson draw of its own, and a record may be in all.")
    if inner.own_order and ranks > 1:
        raise ValueError("Each rank shuffles in an order of its own, and a record may be in all.")
    if not _get(sampler, "split_batches"):
        inner = replace(inner, batch_size=inner.batch_size * ranks)
    uneven = ranks > 1 and not inner.drop_last and inner.draws % inner.batch_size
    return replace(inner, fault=_PADDED) if uneven and _get(sampler, "even_batches") else inner


def _skipping(sampler: object, seen: Seen, length: int) -> Read:
    inner = _of_sampler(_get(sampler, "batch_sampler"), seen, length)
    return replace(inner, kind="rest") if _get(sampler, "skip_batches") else inner


def _poisson(sampler: object, seen: Seen, length: int) -> Read:
    _settings(sampler, seen, "sample_rate")
    return Read("poisson", length, rate=float(_get(sampler, "sample_rate")))


def _distributed_poisson(sampler: object, seen: Seen, length: int) -> Read:
    _settings(sampler, seen, "num_replicas")
    read = _poisson(sampler, seen, length)
    share = int(_get(sampler, "total_size")) // int(_get(sampler, "num_replicas"))
    if (1 - read.rate) ** share > _EMPTY:
        raise ValueError(
            "A rank that draws no record skips the step, which happens with so few expected "
            "records a rank: DistributedUniformWithReplacementSampler needs larger batches."
        )
    return read


def _shuffled(sampler: object, seen: Seen, length: int) -> Read:
    """This package's own; it drops what it leaves out."""
    _settings(sampler, seen, "batch_size")
    records, size = int(_get(sampler, "records")), int(_get(sampler, "batch_size"))
    used = records - int(_get(sampler, "left_out"))
    return Read("shuffle", length, records, used, batch_size=size, drop_last=True, own_order=True)


# Samplers of records


def _sequential(sampler: object, _: Seen, length: int) -> Read:
    records = _length(_get(sampler, "data_source"))
    return Read("cyclic", length, records=records, draws=records)


def _random(sampler: object, seen: Seen, length: int) -> Read:
    _settings(sampler, seen, "replacement")
    records, draws = _length(_get(sampler, "data_source")), _get(sampler, "_num_samples")
    draws = records if draws is None else int(draws)
    if _get(sampler, "replacement"):
        return Read("with_replacement", length, records=records, draws=draws)
    return Read("shuffle", length, records=records, draws=draws)


def _seedable(sampler: object, seen: Seen, length: int) -> Read:
    """Accelerate: it seeds itself anew for each pass, and counts passes that went to their end."""
    return replace(_random(sampler, seen, length), own_seed=True)


def _subset(sampler: object, _: Seen, length: int) -> Read:
    indices = _get(sampler, "indices")
    if _repeats(indices):
        raise ValueError("SubsetRandomSampler has an index twice, and so may a batch.")
    return Read("shuffle", length, records=len(indices), draws=len(indices))


def _weighted(sampler: object, seen: Seen, length: int) -> Read:
    _settings(sampler, seen, "replacement")
    weights, draws = list(map(float, _get(sampler, "weights"))), int(_get(sampler, "num_samples"))
    if not _get(sampler, "replacement"):
        return Read("cyclic", length, records=len(weights), draws=draws)
    return Read("weighted", length, rate=min(1.0, max(weights) / math.fsum(weights)))


def _distributed(sampler: object, seen: Seen, length: int) -> Read:
    _settings(sampler, seen, "num_replicas", "shuffle")
    seen["sampler_drop_last"] = bool(_get(sampler, "drop_last"))
    records, draws = _length(_get(sampler, "dataset")), int(_get(sampler, "total_size"))
    ranks, shuffled = int(_get(sampler, "num_replicas")), bool(_get(sampler, "shuffle"))
    return Read(
        "shuffle" if shuffled else "cyclic",
        length,
        records=records,
        draws=draws,
        batch_size=ranks,
        once=shuffled,
        epochs_unseen=shuffled,
        own_seed=shuffled,
        fault=_PADDED if draws > records else "",
    )


# What is known

_LOADER: Final = "torch.utils.data.dataloader.DataLoader"
_STREAM: Final = "torch.utils.data.dataset.IterableDataset"
_SUBSET: Final = "torch.utils.data.dataset.Subset"
_CONCAT: Final = "torch.utils.data.dataset.ConcatDataset"
_HOLDERS: Final[Mapping[str, str]] = {  # and the attribute that holds the loader inside
    "accelerate.data_loader.DataLoaderShard": "base_dataloader",
    "accelerate.data_loader.SkipDataLoader": "base_dataloader",
    "lightning.fabric.wrappers._FabricDataLoader": "_dataloader",
}
_SET_EPOCHS: Final = {  # a new one for each pass that goes to its end
    "accelerate.data_loader.DataLoaderShard",
    "lightning.fabric.wrappers._FabricDataLoader",
}
_OURS: Final = "dpledger_client.loaders.secret_orders.ShuffledBatches"
_BATCHING: Final[Mapping[str, Reader]] = {
    _OURS: _shuffled,
    "torch.utils.data.sampler.BatchSampler": _batched,
    "opacus.utils.uniform_sampler.UniformWithReplacementSampler": _poisson,
    "opacus.utils.uniform_sampler.DistributedUniformWithReplacementSampler": _distributed_poisson,
    "opacus.utils.batch_memory_manager.BatchSplittingSampler": _split,
    "accelerate.data_loader.BatchSamplerShard": _sharded,
    "accelerate.data_loader.SkipBatchSampler": _skipping,
}
_SAMPLERS: Final[Mapping[str, Reader]] = {
    **_BATCHING,
    "torch.utils.data.sampler.SequentialSampler": _sequential,
    "torch.utils.data.sampler.RandomSampler": _random,
    "torch.utils.data.sampler.SubsetRandomSampler": _subset,
    "torch.utils.data.sampler.WeightedRandomSampler": _weighted,
    "torch.utils.data.distributed.DistributedSampler": _distributed,
    "accelerate.data_loader.SeedableRandomSampler": _seedable,
}
_GROUPING: Final = {
    "transformers.trainer_pt_utils.BatchRebalanceSampler",
    "transformers.trainer_pt_utils.DistributedLengthGroupedSampler",
    "transformers.trainer_pt_utils.LengthGroupedSampler",
}
_KNOWN: Final = {_LOADER, *_HOLDERS, *_SAMPLERS, *_GROUPING}
# What a class defines that draws otherwise than the class it comes from.
_DRAWING: Final = {
    "__getattribute__", "__iter__", "__len__", "__next__", "_auto_collation", "_get_iterator",
    "_index_sampler", "batch_sampler", "batch_size", "num_samples", "sampler",
}  # fmt: skip
_PASSES: Final = ("shuffle", "cyclic", "rest")
_PADDED: Final = "The last batches are filled up with the first records: drop the last batch."
_EMPTY: Final = 1e-12  # probability that a rank draws no record in a step


def _refuse_repeated(data: Any) -> None:
    """Data that are made of other data may hold a record repeatedly, and so may a batch."""
    names = set(map(_full_name, type(data).__mro__))
    if _SUBSET in names:
        if _repeats(_get(data, "indices")):
            raise ValueError(
                "Subset has an index twice, and so may a batch: no sampling covers it."
            )
        _refuse_repeated(_get(data, "dataset"))
    if _CONCAT in names:
        parts = _get(data, "datasets")
        if len(set(map(id, parts))) != len(parts):
            raise ValueError(
                "ConcatDataset has the same data twice, and so may a batch: no sampling covers it."
            )
        for part in parts:
            _refuse_repeated(part)


def _repeats(indices: Any) -> bool:
    single = {int(place) if hasattr(place, "__index__") else place for place in indices}
    return len(single) != len(indices)


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _known_name(thing: object) -> str:
    """The known class it is, or comes from without drawing in a way of its own; else nothing."""
    for kind in type(thing).__mro__:
        if (name := _full_name(kind)) in _KNOWN:
            return name
        if _DRAWING & vars(kind).keys():
            break
    return ""


def _noted(thing: object, role: str, seen: Seen) -> str:
    seen[role] = _full_name(type(thing))
    return _known_name(thing)


def _settings(thing: object, seen: Seen, *names: str) -> None:
    for name in names:
        value = _get(thing, name)
        if isinstance(value, bool | int | float | str):
            seen[name] = value


def _get(thing: object, name: str) -> Any:
    try:
        return getattr(thing, name)
    except AttributeError as error:
        raise UnclearError(f"{_full_name(type(thing))} has no {name}.") from error


def _length(data: Any) -> int:
    try:
        return len(data)
    except TypeError as error:
        raise UnclearError("The data have no length.") from error


def _ranks(sampler: object) -> int:
    return int(_get(sampler, "num_processes"))
