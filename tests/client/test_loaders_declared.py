"""A loader against a declaration: whose word counts."""

from typing import Any

import pytest
from dpledger_client import (
    balls_and_bins,
    cyclic,
    full,
    loaders,
    non_uniform,
    poisson,
    shuffle,
    truncated_poisson,
    unknown,
    with_replacement,
)

from tests.client.loader_classes import (
    BATCH,
    COINS,
    EACH_PASS,
    RATE,
    SHUFFLED,
    SIZE,
    Seedable,
    Sequential,
    ShardLoader,
    Uniform,
    Weighted,
    batches,
    data,
    distributed,
    found,
    loader,
    random,
)  # fmt: skip


@pytest.mark.parametrize(
    ("what", "declared"),
    [
        (SHUFFLED, {"kind": "shuffle", "batch_size": BATCH, "reshuffle": "each_pass",
                    "steps_per_pass": 235}),
        (COINS, poisson(sampling_probability=RATE)),
        (COINS, poisson(expected_batch_size=SIZE / 235)),
    ],
)  # fmt: skip
def test_a_declaration_that_is_found_is_detected(what: Any, declared: Any) -> None:
    finding = loaders.inspect(what, declared=declared, dataset_size=SIZE)
    assert (finding.status, finding.declared) == ("detected", declared)
    assert finding.sampling == found(what)


@pytest.mark.parametrize(
    "order", [{"kind": "shuffle", "reshuffle": "each_pass"}, {"kind": "cyclic"}]
)
def test_a_loader_tells_the_length_of_the_passes_that_were_declared(order: dict[str, Any]) -> None:
    said = order | {"batch_size": BATCH}
    for dropped, length in ((False, 235), (True, 234)):
        sampler = random() if order["kind"] == "shuffle" else Sequential(data_source=data())
        what = loader(batches(sampler, drop_last=dropped))
        finding = loaders.inspect(what, declared=said, dataset_size=SIZE)
        assert (finding.status, finding.sampling) == ("detected", found(what))
        assert finding.declared == said | {"steps_per_pass": length}


@pytest.mark.parametrize("what", [COINS, object(), loader(batches(random(), size=128))])
def test_a_length_that_no_loader_tells_must_be_declared(what: Any) -> None:
    said = {"kind": "shuffle", "batch_size": BATCH, "reshuffle": "each_pass"}
    with pytest.raises(ValueError, match=r"steps_per_pass must be given.* 235 .* 234 .*drop_last"):
        loaders.inspect(what, declared=said, dataset_size=SIZE)


@pytest.mark.parametrize(
    ("what", "declared"),
    [
        (SHUFFLED, full()),
        (SHUFFLED, unknown()),
        (SHUFFLED, cyclic(batch_size=BATCH, steps_per_pass=235)),
        (SHUFFLED, shuffle(batch_size=BATCH, reshuffle="once", steps_per_pass=235)),
        (SHUFFLED, shuffle(batch_size=BATCH, steps_per_pass=100)),  # the loop may break off
        (COINS, full()),
        (COINS, poisson(sampling_probability=256 / SIZE)),
        (COINS, poisson(expected_batch_size=256)),
        (loader(batches(Weighted(weights=[1.0, 1.0], num_samples=1, replacement=True), size=1)),
         non_uniform(max_weight=0.6)),
    ],
)  # fmt: skip
def test_a_dearer_declaration_is_kept(what: Any, declared: Any) -> None:
    finding = loaders.inspect(what, declared=declared, dataset_size=SIZE)
    assert (finding.status, finding.sampling) == ("declared", declared)
    assert "Kept as declared" in finding.reason


@pytest.mark.parametrize(
    ("what", "declared"),
    [
        (SHUFFLED, poisson(sampling_probability=256 / SIZE)),
        (SHUFFLED, poisson(sampling_probability=1.0)),
        (SHUFFLED, balls_and_bins(steps_per_pass=235)),
        (SHUFFLED, shuffle(batch_size=128, steps_per_pass=469)),
        (SHUFFLED, shuffle(batch_size=512, steps_per_pass=100)),
        (loader(batches(random(), drop_last=True)), EACH_PASS),  # a pass believed to be longer
        (loader(batches(Sequential(data_source=data()))), EACH_PASS),
        (loader(batches(distributed(shuffle=False), size=64)), EACH_PASS),
        (loader(batches(distributed(30_000), size=64), of=data(30_000)),
         shuffle(batch_size=BATCH, steps_per_pass=118)),  # always the same half
        (COINS, poisson(sampling_probability=RATE * 0.99)),
        (COINS, truncated_poisson(sampling_probability=RATE, max_batch_size=256)),
        (COINS, EACH_PASS),
        (loader(batches(Weighted(weights=[1.0, 1.0], num_samples=1, replacement=True), size=1)),
         non_uniform(max_weight=0.4)),
    ],
)  # fmt: skip
def test_another_declaration_is_contradicted_and_what_was_found_counts(
    what: Any, declared: Any
) -> None:
    finding = loaders.inspect(what, declared=declared, dataset_size=SIZE)
    assert (finding.status, finding.declared) == ("contradicted", declared)
    assert finding.sampling == found(what)


def test_a_rate_of_another_size_is_contradicted() -> None:
    fewer = loader(Uniform(num_samples=1000, sample_rate=0.1), of=data(1000))
    told = loaders.inspect(fewer, declared=poisson(expected_batch_size=100), dataset_size=2000)
    assert (told.status, told.sampling) == ("contradicted", poisson(sampling_probability=0.1))
    assert "as many records" in told.note
    assert "as many records" not in told.reason  # which is sent, and the length is private
    same = loaders.inspect(fewer, declared=poisson(sampling_probability=0.1), dataset_size=2000)
    assert same.status == "detected"
    assert "as many records" in same.note


def test_more_records_than_the_dataset_has_are_not_passes_over_it() -> None:
    assert found(SHUFFLED, 1000) == unknown()
    assert found(COINS, 1000) == unknown()
    weighted = Weighted(weights=[1.0] * SIZE, num_samples=1, replacement=True)
    assert found(loader(batches(weighted, size=1)), 1000) == unknown()
    # A record may be in the data repeatedly, which full() does not cover.
    finding = loaders.inspect(COINS, declared=full(), dataset_size=1000)
    assert (finding.status, finding.sampling) == ("contradicted", unknown())


@pytest.mark.parametrize("declared", [full(), unknown()])
def test_a_record_that_may_be_in_a_batch_repeatedly_is_dearer_than_full(declared: Any) -> None:
    drawn = loader(batches(random(replacement=True)))
    finding = loaders.inspect(drawn, declared=declared, dataset_size=SIZE)
    assert finding.status == "contradicted"
    assert finding.sampling == with_replacement(batch_size=BATCH)


def test_draws_with_replacement_need_the_true_size() -> None:
    for size in (SIZE - 1, SIZE + 1):
        with pytest.raises(ValueError, match="number of records"):
            found(loader(batches(random(replacement=True))), size)


def test_what_is_left_out_is_compared_with_the_loader() -> None:
    dropping = loader(batches(random(), drop_last=True))
    plain = shuffle(batch_size=BATCH, steps_per_pass=234)
    for said, status in ((96, "detected"), (95, "contradicted"), (0, "contradicted")):
        declared = plain | {"left_out": said}
        finding = loaders.inspect(dropping, declared=declared, dataset_size=SIZE)
        assert (finding.status, finding.sampling) == (status, plain)
    whole = shuffle(batch_size=BATCH, steps_per_pass=235, left_out=0)
    finding = loaders.inspect(SHUFFLED, declared=whole, dataset_size=SIZE)
    assert (finding.status, finding.sampling) == ("detected", EACH_PASS)


def seedable(*, drop_last: bool) -> Any:
    sampler = Seedable(data_source=data(), replacement=False, _num_samples=None)
    return loader(batches(sampler, drop_last=drop_last))


def in_ranks(*, drop_last: bool) -> Any:
    return ShardLoader(
        base_dataloader=loader(batches(distributed(), size=BATCH // 4, drop_last=drop_last))
    )


@pytest.mark.parametrize("made", [seedable, in_ranks])
def test_orders_by_a_seed_of_the_sampler_are_not_secret(made: Any) -> None:
    whole, dropped = made(drop_last=False), made(drop_last=True)
    assert found(dropped) == shuffle(batch_size=BATCH, steps_per_pass=234, reshuffle="once")
    assert not loaders.inspect(whole, declared=None, dataset_size=SIZE).is_secret
    claimed = shuffle(batch_size=BATCH, steps_per_pass=234)
    finding = loaders.inspect(dropped, declared=claimed, dataset_size=SIZE)
    assert (finding.status, finding.sampling) == ("contradicted", found(dropped))
    assert "dpledger_client.shuffled" in finding.reason


@pytest.mark.parametrize("made", [seedable, in_ranks])
def test_a_pass_that_ends_early_may_begin_again_where_the_seed_is_the_samplers(made: Any) -> None:
    claimed = shuffle(batch_size=BATCH, steps_per_pass=23)
    for dropped in (False, True):
        what = made(drop_last=dropped)
        finding = loaders.inspect(what, declared=claimed, dataset_size=SIZE)
        assert finding.status == "contradicted"
        assert finding.sampling == claimed | {"reshuffle": "once"}
        dearer = claimed | {"reshuffle": "once"}
        kept = loaders.inspect(what, declared=dearer, dataset_size=SIZE)
        assert kept.sampling == dearer
    secret = loaders.inspect(SHUFFLED, declared=claimed, dataset_size=SIZE)
    assert (secret.status, secret.is_secret) == ("declared", True)


def test_single_records_by_a_seed_of_the_sampler_are_in_no_secret_order() -> None:
    sampler = Seedable(data_source=data(), replacement=False, _num_samples=None)
    told = found(loader(batches(sampler, size=1)))
    assert told == shuffle(batch_size=1, steps_per_pass=SIZE, reshuffle="once")
