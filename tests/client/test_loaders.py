"""What loaders are, by stand-ins with the classes' real names; real ones are in integrations."""

import math
from array import array
from collections.abc import Iterator
from typing import Any

import pytest
from dpledger_client import (
    cyclic,
    full,
    loaders,
    non_uniform,
    poisson,
    shuffle,
    unknown,
    with_replacement,
)

from tests.client.loader_classes import (
    BATCH,
    EACH_PASS,
    RATE,
    SHUFFLED,
    SIZE,
    TORCH,
    TWICE,
    DataConcat,
    DataLoader,
    DataSubset,
    DistributedUniform,
    Fabric,
    Grouped,
    Random,
    Seedable,
    Sequential,
    ShardLoader,
    SkipLoader,
    Skipping,
    Splitting,
    Stream,
    Subset,
    Uniform,
    Weighted,
    batches,
    data,
    distributed,
    found,
    loader,
    random,
    sharded,
)  # fmt: skip

# The tables of the guide


@pytest.mark.parametrize(
    ("what", "sampling"),
    [
        (batches(random()), EACH_PASS),
        (batches(random(), drop_last=True), shuffle(batch_size=BATCH, steps_per_pass=234)),
        (batches(random(num_samples=29_952)), shuffle(batch_size=BATCH, steps_per_pass=117)),
        (batches(random(replacement=True, num_samples=100)), with_replacement(batch_size=BATCH)),
        (batches(Sequential(data_source=data())), cyclic(batch_size=BATCH, steps_per_pass=235)),
        (batches(Weighted(weights=[1.0, 3.0], num_samples=9, replacement=True), size=1),
         non_uniform(max_weight=0.75)),
        (batches(Weighted(weights=[1.0] * SIZE, num_samples=SIZE, replacement=False)),
         cyclic(batch_size=BATCH, steps_per_pass=235)),
        (batches(Subset(indices=range(SIZE))), EACH_PASS),
        (batches(distributed(shuffle=False), size=64),
         cyclic(batch_size=BATCH, steps_per_pass=235)),
        (Uniform(num_samples=SIZE, sample_rate=RATE, generator=None, steps=235),
         poisson(sampling_probability=RATE)),
        (DistributedUniform(total_size=SIZE, sample_rate=RATE, num_replicas=2),
         poisson(sampling_probability=RATE)),
        (batches(Seedable(data_source=data(), replacement=False, _num_samples=None)), EACH_PASS),
    ],
)  # fmt: skip
def test_loaders_are_what_the_guide_says(what: Any, sampling: dict[str, Any]) -> None:
    assert found(loader(what)) == sampling


def test_an_order_of_a_sampler_of_ranks_is_the_same_unless_the_loop_sets_the_epoch() -> None:
    what = loader(batches(distributed(), size=64))
    assert found(what) == shuffle(batch_size=BATCH, reshuffle="once", steps_per_pass=235)
    told = loaders.inspect(what, declared=EACH_PASS, dataset_size=SIZE)
    assert (told.status, told.sampling) == ("declared", EACH_PASS)
    assert "sets the epoch" in told.reason


@pytest.mark.parametrize("wrapper", [ShardLoader, Fabric])
def test_some_wrappers_set_the_epoch(wrapper: type) -> None:
    inner = loader(batches(distributed(), size=64))
    assert found(wrapper(base_dataloader=inner, _dataloader=inner)) == EACH_PASS


def test_a_fixed_part_of_the_data_owes_nothing_to_the_order() -> None:
    # As a shuffle of 118 steps it would count as one that stops early, which hides records.
    part = batches(Subset(indices=range(30_000)))
    assert found(loader(part)) == cyclic(batch_size=BATCH, steps_per_pass=118)
    smaller = loader(batches(random(30_000)), of=data(30_000))
    assert found(smaller, None) == shuffle(batch_size=BATCH, steps_per_pass=118)


def test_a_batch_has_no_more_records_than_the_dataset() -> None:
    assert found(loader(batches(random(100)), of=data(100)), 100) == shuffle(
        batch_size=100, steps_per_pass=1
    )


def test_parts_for_the_memory_are_one_batch() -> None:
    rate = Uniform(num_samples=SIZE, sample_rate=RATE)
    assert found(loader(Splitting(sampler=rate, max_batch_size=8))) == poisson(
        sampling_probability=RATE
    )
    assert found(loader(Splitting(sampler=batches(random()), max_batch_size=8))) == EACH_PASS


def test_a_batch_sampler_may_stand_in_for_the_sampler() -> None:
    assert found(loader(None, sampler=batches(random()))) == EACH_PASS


def test_orders_one_after_the_other_are_passes() -> None:
    assert found(loader(batches(random(num_samples=3 * SIZE), size=240))) == shuffle(
        batch_size=240, steps_per_pass=250
    )
    for draws, size in ((3 * SIZE, 256), (SIZE + 240, 240)):
        with pytest.raises(ValueError, match="twice"):
            found(loader(batches(random(num_samples=draws), size=size)))


# Ranks and accumulation


def test_ranks_take_joint_batches() -> None:
    evenly = batches(random(), size=60)
    assert found(loader(sharded(evenly))) == shuffle(batch_size=240, steps_per_pass=250)
    assert found(loader(sharded(evenly, split_batches=True))) == shuffle(
        batch_size=60, steps_per_pass=1000
    )
    uneven = batches(random(), size=64)
    assert found(loader(sharded(uneven, even_batches=False))) == EACH_PASS
    dropping = batches(random(), size=64, drop_last=True)
    assert found(loader(sharded(dropping))) == shuffle(batch_size=BATCH, steps_per_pass=234)
    assert found(loader(sharded(batches(random()), num_processes=1))) == EACH_PASS


@pytest.mark.parametrize(
    "padded",
    [
        sharded(batches(random(), size=64)),
        batches(distributed(SIZE, ranks=7, drop_last=False), size=64),
    ],
)
def test_batches_that_are_filled_up_show_a_record_twice_in_a_pass(padded: Any) -> None:
    finding = loaders.inspect(loader(padded), declared=EACH_PASS, dataset_size=SIZE)
    assert (finding.status, finding.sampling) == ("contradicted", unknown())
    assert "drop the last batch" in finding.reason


def test_a_filled_up_pass_of_one_step_is_refused() -> None:
    with pytest.raises(ValueError, match="filled up"):
        found(loader(batches(distributed(7, drop_last=False), size=64), of=data(7)), 7)


def test_ranks_that_draw_for_themselves_may_draw_a_record_each() -> None:
    with pytest.raises(ValueError, match="may be in all"):
        found(loader(sharded(Uniform(num_samples=SIZE, sample_rate=RATE))))


def test_ranks_that_may_draw_nobody_are_refused() -> None:
    # Five expected records a rank, as the guide warns; 64 are enough.
    with pytest.raises(ValueError, match="draws no record"):
        found(loader(DistributedUniform(total_size=SIZE, sample_rate=10 / SIZE, num_replicas=2)))
    enough = DistributedUniform(total_size=SIZE, sample_rate=128 / SIZE, num_replicas=2)
    assert found(loader(enough)) == poisson(sampling_probability=128 / SIZE)


def test_shuffled_batches_of_one_step_are_one_batch() -> None:
    assert found(loader(batches(random())), accumulation=4) == shuffle(
        batch_size=1024, steps_per_pass=59
    )
    dropping = loader(batches(random(), drop_last=True))
    # 58 steps of four batches, and one of the last two
    assert found(dropping, accumulation=4) == shuffle(batch_size=1024, steps_per_pass=59)
    drawn = loader(batches(random(replacement=True)))
    assert found(drawn, accumulation=4) == with_replacement(batch_size=1024)


@pytest.mark.parametrize(
    ("what", "declared"),
    [
        (Uniform(num_samples=SIZE, sample_rate=RATE), None),
        (Uniform(num_samples=SIZE, sample_rate=RATE), full()),
        (object(), None),
        (object(), poisson(sampling_probability=RATE)),
    ],
)
def test_several_draws_in_one_step_are_refused(what: Any, declared: Any) -> None:
    with pytest.raises(ValueError, match="divided by the number of draws"):
        loaders.inspect(loader(what), declared=declared, dataset_size=SIZE, accumulation=2)


def test_an_unknown_loader_of_several_batches_a_step_is_as_declared() -> None:
    told = loaders.inspect(object(), declared=EACH_PASS, dataset_size=SIZE, accumulation=2)
    assert (told.status, told.sampling) == ("declared", EACH_PASS)


@pytest.mark.parametrize("accumulation", [0, -1, math.nan])
def test_a_step_has_a_batch(accumulation: Any) -> None:
    with pytest.raises(ValueError, match="accumulation"):
        found(loader(batches(random())), accumulation=accumulation)


# What is not known


class OwnOrder(Random):  # type: ignore[misc]
    def __iter__(self) -> Iterator[int]:
        return iter(())


class OwnSettings(Random):  # type: ignore[misc]
    colour = "red"


class OwnLoader(DataLoader):  # type: ignore[misc]
    def __iter__(self) -> Iterator[int]:
        return iter(())


@pytest.mark.parametrize(
    "what",
    [
        loader(batches(OwnOrder(**vars(random())))),
        loader(batches(random()), kind=OwnLoader),
        loader(batches(random()), of=Stream([1])),
        loader(None, sampler=random()),  # an element may be a whole batch
        loader([[1, 2], [3]]),
        loader(batches(Random(data_source=data()))),  # of another version
        loader(batches(random()), of=object()),
        loader(batches(random(10), drop_last=True)),  # no batch at all
        ShardLoader(base_dataloader=[1]),
        [1, 2],
    ],
)
def test_what_cannot_be_read_is_as_declared_or_unknown(what: Any) -> None:
    for declared, sampling in ((None, unknown()), (EACH_PASS, EACH_PASS)):
        finding = loaders.inspect(what, declared=declared, dataset_size=SIZE)
        assert (finding.status, finding.sampling) == ("declared", sampling)
        assert "no record may be in a step more than once" in finding.reason


def test_a_class_that_changes_no_draw_is_known() -> None:
    assert found(loader(batches(OwnSettings(**vars(random()))))) == EACH_PASS


def test_batches_in_the_order_in_which_they_are_ready_are_not_a_shuffle() -> None:
    what = loader(batches(random()))
    what.in_order = False
    assert found(what) == unknown()
    coins = loader(Uniform(num_samples=SIZE, sample_rate=RATE))
    coins.in_order = False
    assert found(coins) == poisson(sampling_probability=RATE)


@pytest.mark.parametrize(
    "what",
    [
        SkipLoader(base_dataloader=SHUFFLED, skip_batches=3),
        ShardLoader(base_dataloader=SHUFFLED, skip_batches=3),
        loader(Skipping(batch_sampler=batches(random()), skip_batches=3)),
    ],
)
def test_the_rest_of_a_pass_is_full(what: Any) -> None:
    assert found(what) == full()


def test_no_skip_is_no_rest() -> None:
    assert found(ShardLoader(base_dataloader=SHUFFLED, skip_batches=0)) == EACH_PASS
    none = loader(Skipping(batch_sampler=batches(random()), skip_batches=0))
    assert found(none) == EACH_PASS


@pytest.mark.parametrize(
    "what",
    [
        batches(Grouped()),
        batches(Weighted(weights=[1.0, 1.0], num_samples=2, replacement=True)),
        batches(Subset(indices=[1, 1])),
        batches(Subset(indices=array("q", [1, 1]))),
    ],
)
def test_what_no_sampling_covers_is_refused(what: Any) -> None:
    with pytest.raises(ValueError, match=r"no sampling covers|repeatedly|twice"):
        loaders.inspect(loader(what), declared=full(), dataset_size=SIZE)


@pytest.mark.parametrize(
    ("of", "named"),
    [
        (DataSubset(indices=[0, 1, 0], dataset=data()), "Subset has an index twice"),
        (DataSubset(indices=array("q", [0, 0]), dataset=data()), "Subset has an index twice"),
        (DataConcat(datasets=[TWICE, data(), TWICE]), "ConcatDataset has the same data twice"),
        (DataConcat(datasets=[data(), DataSubset(indices=[1, 1], dataset=data())]), "index twice"),
        (DataSubset(indices=[0, 1], dataset=DataConcat(datasets=[TWICE, TWICE])), "data twice"),
    ],
)
def test_data_that_hold_a_record_twice_are_refused(of: Any, named: str) -> None:
    for what in (batches(random()), Uniform(num_samples=SIZE, sample_rate=RATE), object()):
        with pytest.raises(ValueError, match=named):
            loaders.inspect(loader(what, of=of), declared=full(), dataset_size=SIZE)


def test_data_that_are_made_of_others_may_hold_each_record_once() -> None:
    parts = [DataSubset(indices=list(range(k, SIZE, 2)), dataset=data()) for k in (0, 1)]
    assert found(loader(batches(random()), of=DataConcat(datasets=parts))) == EACH_PASS
    by_name = DataSubset(indices=["a", "b"], dataset=data())
    assert found(loader(batches(random(2), size=1), of=by_name), 2) == shuffle(
        batch_size=1, steps_per_pass=2
    )


# What is told


def test_names_and_settings_are_told_and_nothing_else() -> None:
    what = ShardLoader(base_dataloader=loader(sharded(batches(random(num_samples=512), size=64))))
    finding = loaders.inspect(what, declared=None, dataset_size=SIZE)
    assert finding.seen == {
        "loader": f"{TORCH}.dataloader.DataLoader",
        "wrapper": "accelerate.data_loader.DataLoaderShard",
        "shard": "accelerate.data_loader.BatchSamplerShard",
        "sampler": f"{TORCH}.sampler.RandomSampler",
        "dataset": f"{TORCH}.dataset.TensorDataset",
        "num_workers": 2,
        "batch_size": 64,
        "drop_last": False,
        "num_processes": 4,
        "split_batches": False,
        "even_batches": True,
        "replacement": False,
    }


def test_a_pass_of_a_length_that_only_the_data_know_is_not_told() -> None:
    smaller = loader(batches(random(30_000)), of=data(30_000))
    finding = loaders.inspect(smaller, declared=None, dataset_size=SIZE)
    assert (finding.status, finding.sampling) == ("detected", unknown())
    assert "118" not in f"{finding.seen} {finding.reason}"
    assert finding.reason == "The loader and dataset_size do not go together."
    assert "as many records" in finding.note  # which stays with the trainer
    other = loaders.inspect(smaller, declared=EACH_PASS, dataset_size=SIZE)
    assert (other.status, other.sampling) == ("contradicted", unknown())
    said = cyclic(batch_size=BATCH, steps_per_pass=118)
    for declared in (said, full()):  # their own words
        kept = loaders.inspect(smaller, declared=declared, dataset_size=SIZE)
        assert kept.sampling == declared


def test_a_weight_is_told_with_two_digits_and_never_less() -> None:
    what = Weighted(weights=[1.0] * 97, num_samples=97, replacement=True)
    one = loader(batches(what, size=1), of=data(97))
    assert found(one, 97) == non_uniform(max_weight=0.011)  # 1/97 would tell how many there are
    assert "num_samples" not in loaders.inspect(one, declared=None, dataset_size=97).seen
    for declared, status in ((1 / 97, "detected"), (0.0105, "declared"), (0.01, "contradicted")):
        said = non_uniform(max_weight=declared)
        finding = loaders.inspect(one, declared=said, dataset_size=97)
        assert finding.status == status
        kept = non_uniform(max_weight=0.011) if status == "contradicted" else said
        assert finding.sampling == kept


def test_no_seed_is_told() -> None:
    finding = loaders.inspect(
        loader(batches(distributed(seed=1234))), declared=None, dataset_size=SIZE
    )
    assert 1234 not in finding.seen.values()
    assert "generator" not in finding.seen
