"""The one-file page of a run: parsed, and looked at in a browser where there is one."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

from harness.types import Evaluation, Finding, RankReport, Stage, Verdict
from runs.diff import lines_of
from runs.events import ModelReplied, RunFinished, RunStarted, Spend, ToolReturned
from runs.exports.page import run_page
from runs.messages import Message, ToolCall, Turn
from runs.record import DEFAULT_ROOT, Record
from service.cli import USAGE, main
from tests import browser as browsing
from tests.runs.factories import candidate, config, evaluation, measurement
from tests.runs.long_record import write_long

EXAMPLES = DEFAULT_ROOT.parent / "examples"
EVIL = "</pre></script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">{{ 7 * 7 }}"


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))


def returned(step: int, call: ToolCall, evaluated: Evaluation) -> ToolReturned:
    return ToolReturned(
        at=step,
        step=step - 1,
        call=call,
        ok=True,
        text=EVIL,
        seconds=1,
        candidate=evaluated.candidate,
        evaluation=evaluated,
    )


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Record:
    """Everything that a model, a candidate or a person can name is an attack on the page."""
    root = tmp_path_factory.mktemp("hostile")
    good, bad = candidate(f"x = '''{EVIL}'''\n"), candidate(f"# {EVIL}\nx = 1\n")
    write, bench = (
        ToolCall(id="w", name="write_candidate", arguments=json.dumps({"source": good.source, EVIL: EVIL})),
        ToolCall(id="b", name=f"run{EVIL}", arguments=EVIL),
    )
    failed = evaluation(bad, Verdict.wrong_values).model_copy(
        update={
            "summary": EVIL,
            "log": EVIL,
            "findings": (Finding(cause=EVIL, text=EVIL, evidence=EVIL),),
            "ranks": (
                RankReport(rank=0, ok=False, stage=Stage.correctness, message=EVIL, stack=EVIL, stderr=EVIL, exit=EVIL),
            ),
        }
    )
    passed = evaluation(good, measured=measurement(1.5))
    with Record.create(root, "evil") as record:
        for one in (good, bad):
            record.save_candidate(one)
        beginning = (Message(role="system", text=EVIL), Message(role="user", text=EVIL * 9))
        for event in (
            RunStarted(
                at=0, run_id=f"evil{EVIL}", config=config(model=EVIL, case=EVIL), prompts_hash=EVIL, messages=beginning
            ),
            ModelReplied(at=1, step=1, turn=Turn(text=EVIL, tool_calls=(write, bench)), seconds=1),
            ToolReturned(
                at=2, step=1, call=write, ok=True, text=EVIL, seconds=1, candidate=bad.hash, evaluation=failed
            ),
            ToolReturned(
                at=3, step=2, call=bench, ok=True, text=EVIL, seconds=1, candidate=good.hash, evaluation=passed
            ),
            RunFinished(
                at=4, reason=f"error: {EVIL}", best=good.hash, official=passed, target_met=True, spend=Spend(steps=2)
            ),
        ):
            record.append(event)
    return record


def test_nothing_that_a_model_wrote_becomes_markup(hostile) -> None:
    text = run_page(hostile)
    page = Page(text)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 3 and "img" not in tags  # tables.js, page.js and the data
    assert "{{ 7 * 7 }}" in text and "&lt;img src=x" in text
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        for name in ("src", "href", "xlink:href"):
            assert attributes.get(name, "#").startswith("#")
    policy = next(attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    named = [name for name in ids if not re.fullmatch(r"[mpC][0-9a-f_]+", name)]
    assert len(named) == len(set(named))
    for name in re.findall(r'href="#([^"]+)"', text):
        assert name in ids or name.removeprefix("code-") in ("1", "2"), name


def test_candidates_are_stored_once_and_come_back_whole(tmp_path) -> None:
    record = write_long(tmp_path, steps=12)
    text = run_page(record)
    stored = json.loads(re.search(r'id="stored">(.*?)</script>', text).group(1))
    lines, attempts = stored["lines"], stored["attempts"]
    assert len(lines) == len(set(lines)) and len(attempts) == 12
    for attempt in attempts.values():
        source = record.candidate(attempt["candidate"]).source
        now = [lines[place] for place in stored["candidates"][attempt["candidate"]]]
        assert now == lines_of(source)
        for other in filter(None, (attempt["before"], attempt["best"])):
            old = [lines[place] for place in stored["candidates"][other["from"]]]
            made: list[str] = []
            for tag, i1, i2, j1, j2 in other["changes"]:
                made += old[i1:i2] if tag == "equal" else now[j1:j2]
            assert made == now
    best = next(one["best"]["from"] for one in attempts.values() if one["best"])
    assert best == record.finished().best and attempts["1"]["before"] is None
    assert attempts["7"]["before"]["from"] == attempts["6"]["candidate"]


def test_a_run_that_goes_on_and_one_without_candidates_have_pages_too(tmp_path) -> None:
    assert "Not yet." in run_page(write_long(tmp_path, "live", steps=2, live=True))
    with Record.create(tmp_path, "bare") as record:
        record.append(RunStarted(at=0, run_id="bare", config=config(), prompts_hash="h", messages=()))
        text = run_page(record)
    assert "; running" in text and "The record has none." in text
    long = write_long(tmp_path, "lost", steps=2)
    for file in long.path.glob("candidates/*"):
        file.unlink()
    assert "The record has none." in run_page(long)


def test_the_command_writes_one_file_a_run(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    export = ["runs", "export", "--format", "html"]
    assert main([*export, str(EXAMPLES / "p01-cuda")]) == 0
    assert capsys.readouterr().out == "p01-cuda.html\n"
    text = (tmp_path / "p01-cuda.html").read_text()
    assert "1.64x [1.63, 1.64]" in text and "4x NVIDIA H200" in text and "26% of it reached" in text
    assert main([*export, str(EXAMPLES), "--out", "pages"]) == 0
    assert sorted(file.name for file in (tmp_path / "pages").iterdir()) == ["p01-cpu.html", "p01-cuda.html"]
    assert main([*export, str(EXAMPLES / "p01-cpu"), "--out", "one.html"]) == 0
    assert "compile_error" in (tmp_path / "one.html").read_text()
    assert main([*export, "nothing-here"]) == USAGE


def test_in_a_browser(hostile, tmp_path, browser) -> None:
    file = tmp_path / "evil.html"
    file.write_text(run_page(hostile))
    browsing.hosts(browser), browsing.complaints(browser)
    browser.get(f"{file.as_uri()}#failure-1")
    assert browser.title.startswith("1 allreduce")
    assert browser.find_element(By.ID, "failure-1").get_attribute("open")
    code = browser.find_element(By.ID, "code")
    assert EVIL in code.text
    Select(browser.find_element(By.ID, "which")).select_by_value("2")
    Select(browser.find_element(By.ID, "against")).select_by_value("before")
    marks = [line.get_attribute("class") for line in code.find_elements(By.TAG_NAME, "span")]
    assert marks == ["minus", "minus", "plus"]
    assert browser.find_element(By.ID, "differs").text == "lines added: 1, removed: 2"
    browser.get(f"{file.as_uri()}#code-1")
    browser.execute_script("location.hash = '#code-1'")
    assert browser.find_element(By.ID, "which").get_attribute("value") == "1"
    backs = []
    for scheme in ("light", "dark"):
        browsing.scheme(browser, scheme)
        backs.append(browser.find_element(By.TAG_NAME, "body").value_of_css_property("background-color"))
    assert backs[0] != backs[1]
    assert browser.title != "owned"
    assert browsing.hosts(browser) == set() and browsing.complaints(browser) == []
