"""The price table: arithmetic, names, a user's own tables, and what the packaged one must have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from agent import prices
from harness.errors import UsageError
from runs.messages import Usage

TABLE = """
version = "test"

[[prices]]
provider = "maker"
models = ["small", "huge-*", "huge-x*"]
input = 2.0
cached = 0.5
cache_write = 2.5
cache_write_long = 4.0
output = 10.0
tiers = [
  { above = 1000, input = 4.0, cached = 1.0, cache_write = 5.0, output = 20.0 },
  { above = 5000, input = 8.0, output = 40.0 },
]

[[prices]]
provider = "maker"
models = ["small"]
since = 2030-01-01
input = 99.0
output = 99.0
"""


@pytest.fixture(autouse=True)
def nothing_of_mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No table of whoever runs the tests, and none of the test before."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(prices.VARIABLE, raising=False)
    prices._tables.cache_clear()
    yield
    prices._tables.cache_clear()


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "maker.toml").write_text(TABLE)
    monkeypatch.setenv(prices.VARIABLE, str(tmp_path / "maker.toml"))


def standing(home: Path, text: str) -> None:
    """What a user keeps at the usual place."""
    path = home / ".config" / "ringsmith" / "prices.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("usage", "millionths"),
    [
        (Usage(), 0),
        (Usage(input_tokens=100, output_tokens=10), 100 * 2 + 10 * 10),
        (Usage(input_tokens=100, cached_tokens=90, output_tokens=1), 10 * 2 + 90 * 0.5 + 10),
        (Usage(input_tokens=100, cached_tokens=60, cache_write_tokens=30), 10 * 2 + 60 * 0.5 + 30 * 2.5),
        (Usage(output_tokens=50, reasoning_tokens=40), 50 * 10),  # reasoning is part of the output
        (Usage(input_tokens=1000), 1000 * 2),
        (Usage(input_tokens=1001, cached_tokens=1000, output_tokens=1), 1 * 4 + 1000 * 1 + 20),  # the whole request
        (Usage(input_tokens=6000, cached_tokens=5000, cache_write_tokens=500), 6000 * 8),  # what is left out: as input
        (Usage(input_tokens=10, cached_tokens=20), 20 * 0.5),  # a provider's numbers that do not add up
    ],
)
@pytest.mark.usefixtures("maker")
def test_arithmetic(usage: Usage, millionths: float) -> None:
    assert prices.cost_usd("maker", "small", usage) == pytest.approx(millionths / 1e6)


@pytest.mark.usefixtures("maker")
def test_a_cache_that_lasts_longer_costs_more_to_write() -> None:
    usage = Usage(input_tokens=100, cache_write_tokens=80)
    assert prices.cost_usd("maker", "small", usage, long_writes=30) == pytest.approx((20 * 2 + 50 * 2.5 + 30 * 4) / 1e6)
    in_a_tier = Usage(input_tokens=2000, cache_write_tokens=2000)  # it has no such rate
    assert prices.cost_usd("maker", "small", in_a_tier, long_writes=2000) == pytest.approx(2000 * 5 / 1e6)


@pytest.mark.parametrize(
    ("provider", "model", "known"),
    [
        ("openai", "gpt-5", True),
        ("openai", "gpt-5-2025-08-07", True),
        ("openai", "gpt-5-pro-2025-10-06", True),
        ("anthropic", "claude-haiku-4-5-20251001", True),
        ("anthropic", "claude-haiku-4-5@20251001", True),
        ("google", "gemini-2.5-pro", True),
        ("gemini", "gemini-2.5-flash-001", True),  # LiteLLM's name of the provider
        ("openai", "gpt-5.9", False),  # a model that is yet to come costs what it will cost
        ("openai", "gpt-5-ultra", False),
        ("google", "gpt-5", False),
        ("nobody", "gpt-5", False),
        ("openai", "", False),
    ],
)
def test_names(provider: str, model: str, known: bool) -> None:
    assert prices.known(provider, model) is known
    assert (prices.cost_usd(provider, model, Usage(input_tokens=1)) is not None) is known


def test_a_snapshot_costs_what_its_model_costs() -> None:
    assert prices.find("openai", "gpt-5-pro-2025-10-06") == prices.find("openai", "gpt-5-pro")
    assert prices.find("openai", "gpt-5-pro") != prices.find("openai", "gpt-5")


@pytest.mark.usefixtures("maker")
def test_families_and_days() -> None:
    assert prices.find("maker", "huge-7") and prices.find("maker", "huge-x-7")
    assert not prices.find("maker", "huge")
    now, later = (prices.find("maker", "small", day) for day in (date(2029, 12, 31), date(2030, 1, 1)))
    assert now and later and (now.input, later.input) == (2.0, 99.0)


def test_the_longest_family_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f'[[prices]]\nprovider = "m"\nmodels = ["{name}"]\ninput = {n}.0\noutput = 1.0\n' for n, name in NAMES]
    (tmp_path / "own.toml").write_text("\n".join(rows))
    monkeypatch.setenv(prices.VARIABLE, str(tmp_path / "own.toml"))
    asked = ["a", "a-1", "a-b", "a-b-1", "a-b-c", "a-b-c-2026-01-01"]
    found = [price.input if (price := prices.find("m", name)) else None for name in asked]
    assert found == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]


NAMES = [(1, "a*"), (2, "a-b*"), (3, "a-b-c")]


def test_a_users_tables_win_and_the_named_one_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = prices.version()
    assert "+" not in packaged
    row = '[[prices]]\nprovider = "openai"\nmodels = ["gpt-5", "{name}"]\ninput = {usd}\noutput = 0.0\n'
    standing(tmp_path, row.format(name="mine", usd=7.0))
    million = Usage(input_tokens=1_000_000)
    assert prices.cost_usd("openai", "gpt-5", million) == 7.0
    assert prices.cost_usd("openai", "mine", million) == 7.0
    assert prices.cost_usd("openai", "gpt-5-mini", million) == 0.25
    with_one = prices.version()
    (tmp_path / "other.toml").write_text(row.format(name="other", usd=8.0))
    monkeypatch.setenv(prices.VARIABLE, "~/other.toml")
    costs = [prices.cost_usd("openai", name, million) for name in ("gpt-5", "mine", "other")]
    assert costs == [8.0, 7.0, 8.0]
    assert re.fullmatch(rf"{re.escape(packaged)}\+[0-9a-f]{{8}}", prices.version())
    assert len({packaged, with_one, prices.version()}) == 3


ROW = '[[prices]]\nprovider = "p"\nmodels = ["m"]\n'


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("prices = [", "is not TOML"),
        (b"\xff", "is not TOML"),
        (f"{ROW}output = 1.0", "prices.0.input: Field required"),
        (f"{ROW}input = -1.0\noutput = 1.0", "prices.0.input: Input should be greater than or equal to 0"),
        (f"{ROW}input = nan\noutput = 1.0", "prices.0.input: Input should be a finite number"),
        (f"{ROW}input = 1.0\noutput = 1.0\ncahced = 0.1", "prices.0.cahced: Extra inputs are not permitted"),
        (f"{ROW}input = 1.0\noutput = 1.0\ntiers = [{{ above = 9, input = 1.0 }}]", "prices.0.tiers.0.output"),
        (f'{ROW}input = 1.0\noutput = 1.0\nsince = "soon"', "prices.0.since: "),
        (f"{ROW}input = 1.0\noutput = 1.0\n{ROW}input = 2.0\noutput = 1.0", "names p/m twice"),
        ('[[prices]]\nprovider = "p"\nmodels = []\ninput = 1.0\noutput = 1.0', "prices.0.models"),
        (None, "cannot read the price table"),
    ],
)
def test_a_bad_table_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | bytes | None, complaint: str
) -> None:
    path = tmp_path / "bad.toml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.setenv(prices.VARIABLE, str(path))
    with pytest.raises(UsageError) as caught:
        prices.known("openai", "gpt-5")
    assert complaint in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_that_breaks_during_a_run_loses_no_reply(tmp_path: Path) -> None:
    standing(tmp_path, f"{ROW}input = 1.0\noutput = 1.0")
    assert prices.known("p", "m")
    (tmp_path / ".config" / "ringsmith" / "prices.toml").write_text("half a ta")
    assert prices.cost_usd("p", "m", Usage(input_tokens=1_000_000)) == 1.0


def packaged() -> prices.Table:
    tables, _ = prices._tables(())
    return tables[-1]


def test_every_packaged_entry_says_where_it_is_from() -> None:
    table = packaged()
    date.fromisoformat(table.version)
    assert {price.provider for price in table.prices} == {"anthropic", "google", "openai"}
    for price in table.prices:
        assert price.source and price.source.startswith("https://"), price.models
        assert price.checked and price.checked <= date.fromisoformat(table.version), price.models
        assert not any(name.endswith("*") for name in price.models), "a family is for what a user knows"


def test_packaged_rates_are_in_a_sane_order() -> None:
    for price in packaged().prices:
        above = [tier.above for tier in price.tiers]
        assert above == sorted(set(above)), price.models
        lower: prices.Rates = price
        for rates in (price, *price.tiers):
            assert 0 < rates.input < rates.output < 1000, price.models
            assert rates.cached is None or rates.cached < rates.input, price.models
            assert rates.cache_write is None or rates.input < rates.cache_write <= 2 * rates.input, price.models
            assert (rates.cached is None) == (price.cached is None), f"{price.models}: a tier that forgets its cache"
            assert (rates.cache_write is None) == (price.cache_write is None), price.models
            assert rates.input >= lower.input and rates.output >= lower.output, price.models
            lower = rates


@pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict class '.*' is using the `ReadOnly` qualifier")
def test_agreement_with_litellm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference is reported, not failed: a provider may have changed a price since either table was made."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    prefixes = {"google": "gemini/"}
    names = {(price.provider, name) for price in packaged().prices for name in price.models}
    both, differences = 0, []
    for provider, name in sorted(names):
        theirs = litellm.model_cost.get(prefixes.get(provider, "") + name)
        ours = prices.find(provider, name)
        if theirs and ours:
            both += 1
            differences += [f"{provider}/{name}: {line}" for line in compare(ours, theirs)]
    assert both >= 40
    if differences:
        pytest.xfail("; ".join(differences))


def compare(ours: prices.Price, theirs: dict[str, float]) -> list[str]:
    fields = {
        "input_cost_per_token": "input",
        "cache_read_input_token_cost": "cached",
        "cache_creation_input_token_cost": "cache_write",
        "output_cost_per_token": "output",
    }
    wanted: dict[str, float | None] = {key: getattr(ours, field) for key, field in fields.items()}
    for tier in ours.tiers:
        wanted |= {f"{key}_above_{tier.above // 1000}k_tokens": getattr(tier, field) for key, field in fields.items()}
    # A tier of theirs that we lack is a difference too.
    wanted |= {
        key: None for key in theirs if re.fullmatch(r"(input|output)_cost_per_token_above_\d+k_tokens", key)
    } | wanted
    seen = {key: theirs.get(key) for key in wanted}
    return [
        f"{key} is {value} here and {None if seen[key] is None else seen[key] * 1e6} there"
        for key, value in wanted.items()
        if (value is None) != (seen[key] is None) or (value is not None and value != pytest.approx(seen[key] * 1e6))
    ]
