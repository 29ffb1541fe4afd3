"""Every page in headless Chromium, over one server as `ringsmith serve` makes it."""

from __future__ import annotations

import time

from selenium.webdriver.common.keys import Keys

from runs import control
from runs.events import ModelReplied, ToolReturned
from runs.loading import records
from runs.messages import ToolCall, Turn
from runs.record import Record
from tests import browser as browsing
from tests.runs.factories import candidate, evaluation, measurement
from tests.service.scripts import turn, write
from tests.service.server import Server
from tests.service.web.looking import Looking
from tests.service.web.records import EVIL, RIGHT, started


def test_runs_are_paged_filtered_and_sorted_by_the_server(look) -> None:
    look.open("/")
    assert len(look.links()) == 50
    look.see("1 to 50 of")
    look.press("2")
    look.see("51 to")
    assert len(look.links()) < 50
    look.field("Filter by run, problem or model").send_keys("LONG")
    look.see("1 to 1 of 1")
    assert look.links() == ["long"]
    look.field("Filter by run, problem or model").send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.BACKSPACE)
    look.choose("Verdict", "passed")
    look.until(lambda: set(look.texts("td .verdict")) == {"passed"})
    look.choose("Sorted by", "speed-up")

    def speeds() -> list[float]:
        return [float(text.removesuffix("x")) for text in look.texts("tbody td:nth-child(7)") if text]

    look.until(lambda: len(speeds()) > 2 and speeds() == sorted(speeds(), reverse=True))


def test_a_list_goes_by_keys_and_every_control_is_reached(look) -> None:
    look.open("/")
    names = look.links()
    look.keys("j")
    assert look.focused().text == names[0]
    look.keys("j", "j", "k")
    assert look.focused().text == names[1]
    look.keys("/")
    assert look.focused().get_attribute("aria-label") == "Filter by run, problem or model"
    look.keys("j")
    assert look.focused().get_attribute("value") == "j"
    look.open("/runs/untimed")
    look.links()
    reached = set()
    for _ in range(40):
        look.keys(Keys.TAB)
        at = look.focused()
        reached.add(at.text.strip() or at.get_attribute("aria-label") or "")
    wanted = {"Runs", "Machine", "Hint to the model", "Send hint", "Resume", "As one HTML file", "Attempts", "1"}
    assert wanted <= reached, wanted - reached


def test_enter_opens_what_is_focused(look) -> None:
    look.open("/")
    first = look.links()[0]
    look.keys("j", Keys.ENTER)
    look.until(lambda: look.driver.current_url.endswith(f"/runs/{first}"))
    look.press("Attempts")
    look.keys("j", Keys.ENTER)
    look.see("Candidate", "[role=tab][aria-selected=true]")


def test_a_run_shows_attempts_text_differences_and_failures(look) -> None:
    look.open("/runs/long")
    assert len(look.links()) == 50
    look.see("13 gemm_allreduce", "h1")
    look.see("120 of 120")
    wrong = lambda: next((text for text in look.texts("tbody tr") if "wrong_values" in text), None)  # noqa: E731
    key = look.until(wrong).split()[0]
    look.click(key, ".row-link")
    look.see("rank 3's part is missing everywhere")
    assert len(look.all(".map tr")) == 8 and len(look.all(".map .part")) == 64
    look.until(lambda: look.all(".cm-line"))
    assert not look.all(".cm-line.diff-plus")
    look.choose("Show", "changes from the one before")
    look.until(lambda: look.all(".cm-line.diff-plus") and look.all(".cm-line.diff-minus"))
    changed = look.texts(".cm-line.diff-plus")
    assert all(line.startswith("+") for line in changed) and any(f"step {key}:" in line for line in changed)
    look.press("In the transcript")
    look.see(f"Step {key} ·", ".entry h3")
    look.press("1")
    look.see("entries 1 to 20 of 123")
    look.click("write_candidate: done", ".entry .q-item")
    look.see("source", ".entry")


def test_nothing_that_a_model_wrote_becomes_markup(look) -> None:
    look.open("/")
    look.see(EVIL)
    look.open("/runs/evil")
    look.see(EVIL, "main")
    for name in ("2", "1"):
        look.press("Attempts")
        look.click(name, ".row-link")
        look.see(EVIL, ".cm-content")
    look.press("Candidate")
    look.unfold("main")
    look.choose("Show", "changes from the one before")
    look.press("Transcript")
    look.unfold(".entry")
    look.see(EVIL, ".entry .pre")
    look.press("Settings")
    look.see(EVIL, "main")
    assert look.driver.execute_script("return window.owned") is None
    assert not look.all("img[src=x]")
    look.open("/files/runs/evil/page.html")
    look.see(EVIL)
    assert look.driver.execute_script("return window.owned") is None and not look.all("img")


def test_a_run_is_followed_and_entered_while_it_goes_on(look, server) -> None:
    one, other = candidate("# one\n"), candidate("# other\n")
    write, bench = (ToolCall(id=name, name=name, arguments="{}") for name in ("write_candidate", "run_benchmark"))
    with Record.create(server.runs, "20270101-live") as record:
        record.save_candidate(one)
        record.append(started("20270101-live"))
        look.open("/runs/20270101-live")
        look.see("running")
        now = time.time()
        record.append(ModelReplied(at=now, step=1, turn=Turn(text="I try this", tool_calls=(write, bench)), seconds=1))
        record.append(ToolReturned(at=now, step=1, call=write, ok=True, text="ok", seconds=1, candidate=one.hash))
        assert look.links() == ["1"]
        passed = evaluation(one, measured=measurement(1.5))
        record.append(
            ToolReturned(
                at=now, step=1, call=bench, ok=True, text="ok", seconds=1, candidate=one.hash, evaluation=passed
            )
        )
        look.see("attempt 1, step 1: 1.60x [1.50, 1.70]")
        look.press("Transcript")
        look.see("I try this", ".entry")
        look.field("Hint to the model").send_keys("look at the barrier", Keys.ENTER)
        look.see("Not taken yet: hint")
        look.press("Pause")
        look.see("Not taken yet: hint, pause")
        look.press("Cancel")
        look.press("Go on")
        look.press("Candidate")
        look.press("Edit and evaluate")
        look.rewrite(other.source)
        look.press("Put into the run")
        asked = look.until(lambda: len(found := control.pending(record.path)) == 3 and found)
        assert [(of.action, of.request.text) for of in asked] == [
            ("hint", "look at the barrier"),
            ("pause", ""),
            ("candidate", other.source),
        ]
    look.see("interrupted")
    record.close()


def test_an_edited_candidate_is_really_evaluated(look, server) -> None:
    look.open("/runs/untimed")
    look.links()
    look.press("Candidate")
    look.press("New run from here")
    look.see("scripted", ".q-notification")  # which this server was not told to allow
    look.press("Edit and evaluate")
    look.rewrite(RIGHT)
    look.press("Evaluate")
    look.see("Evaluating")
    look.see("correct, not timed")
    assert control.pending(server.runs / "untimed") == []


def test_a_run_is_begun_from_a_form(browser, tmp_path) -> None:
    write(tmp_path / "scripts", "default", [turn(("read", {"what": "reference"})), {"text": "I give up."}])
    served = Server(tmp_path / "runs", "--allow-files", pages=True).start()
    try:
        look = Looking(browser, served.url)
        look.begin()
        look.open("/")
        look.press("New run")
        look.press("Begin")
        look.see("problem: say which", ".q-notification")
        look.field("Problem of the run").send_keys("allreduce")
        look.click("1 allreduce", "[role=option]")
        look.field("Model: PROVIDER/MODEL").send_keys("nobody/knows")
        look.press("Begin")
        look.see("'nobody' is not a provider", ".q-notification")
        look.field("Model: PROVIDER/MODEL").send_keys(Keys.CONTROL, "a", Keys.NULL)
        look.field("Model: PROVIDER/MODEL").send_keys(f"scripted:{tmp_path / 'scripts'}")
        look.field("Case, if not the usual one").send_keys("tiny")
        look.choose("Platform", "cpu")
        look.field("Ranks, if not all GPUs").send_keys("2")
        look.press("Begin")
        look.see("finished: model_stopped")
    finally:
        served.stop()
    (record,) = records(served.runs)
    config = record.started().config
    assert (config.problem, config.case, config.platform, config.world_size) == (1, "tiny", "cpu", 2)


def test_problems_have_their_floors_and_the_machine_its_facts(look) -> None:
    look.open("/problems")
    assert len(look.links()) == 87
    look.field("Filter by any word").send_keys("gemm reduce_scatter")
    look.until(lambda: 0 < len(look.links()) < 20)
    look.open("/problems/13")
    look.see("def reference(", ".pre")
    look.see("m=8192, n=8192, k=3584", ".plain")
    look.open("/problems/nothing")
    look.see("nothing", "main")
    look.open("/machine")
    look.see("platform cpu", ".plain")
    look.see("Leases")


def test_a_sweep_has_its_tally_its_runs_and_its_report(look) -> None:
    look.open("/sweeps")
    look.see("2 of 4")
    look.click("first", ".row-link")
    look.see("maker/large", ".plain")
    assert sorted(look.links()) == ["0-p01-0", "1-p01-0"]
    look.press("Drain")
    look.see("is not being run here", ".q-notification")
    look.open("/files/sweeps/first/report.html")
    look.see("Head to head")


def test_pages_are_dark_and_light_as_the_system_is(look) -> None:
    for scheme, back in (("dark", "rgba(20, 23, 27, 1)"), ("light", "rgba(255, 255, 255, 1)")):
        browsing.scheme(look.driver, scheme)
        look.open("/runs/p01-cuda")
        look.see("1 allreduce", "h1")
        assert look.all("body")[0].value_of_css_property("background-color") == back


def test_unknown_names_are_said_to_be_unknown(look) -> None:
    look.open("/runs/no-such-run")
    look.see("no run 'no-such-run'")
    look.open("/sweeps/no-such-sweep")
    look.see("There is no such sweep.")
