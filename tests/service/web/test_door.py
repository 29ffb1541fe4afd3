"""Who comes in: tokens in a cookie that no script and no other site has."""

from __future__ import annotations

import httpx
import pytest
from selenium.webdriver.common.keys import Keys

from runs import control
from service.http.access import Tokens
from service.jobs.store import Store, default_url
from tests.service.web.looking import Looking


def tokens(server) -> Tokens:
    """As another process has them: `ringsmith serve token`."""
    return Tokens(Store(default_url(server.runs)))


def test_a_browser_is_led_to_the_door_and_back(server, browser, admin) -> None:
    look = Looking(browser, server.url)
    look.begin()
    look.open("/problems/2")
    field = look.until(lambda: look.all("input[name=token]"))[0]
    assert browser.current_url == f"{server.url}/login?next=/problems/2"
    field.send_keys("no token", Keys.ENTER)
    look.see("That token is not known", "output")
    field.send_keys(Keys.CONTROL, "a", Keys.NULL, admin, Keys.ENTER)
    look.see("def reference(", ".pre")
    cookie = browser.get_cookie("ringsmith_token")
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["value"]) == (True, "Strict", admin)
    assert "ringsmith_token" not in browser.execute_script("return document.cookie")


@pytest.mark.parametrize("path", ["/", "/runs/long", "/files/runs/long/events.jsonl", "/web/style.css", "/_nicegui/x"])
def test_without_a_token_there_is_nothing(server, path) -> None:
    assert httpx.get(f"{server.url}{path}").status_code == 401
    led = httpx.get(f"{server.url}{path}", headers={"Accept": "text/html"})
    assert (led.status_code, led.headers["location"]) == (303, f"/login?next={path}")
    assert httpx.get(f"{server.url}{path}", cookies={"ringsmith_token": "wrong"}).status_code == 401


def test_what_comes_back_after_the_door_is_a_place_here(server, browser, admin) -> None:
    look = Looking(browser, server.url)
    look.begin()
    for elsewhere in ("//example.org", "https://example.org"):
        look.open(f"/login?next={elsewhere}")
        look.until(lambda: look.all("input[name=token]"))[0].send_keys(admin, Keys.ENTER)
        look.see("Runs", "h1")
        assert browser.current_url == f"{server.url}/"


def test_pages_say_what_they_load_and_that_nobody_may_frame_them(server, admin) -> None:
    page = httpx.get(f"{server.url}/", cookies={"ringsmith_token": admin})
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy and "http" not in policy
    assert page.headers["x-frame-options"] == "DENY"
    entered = httpx.post(f"{server.url}/login", json={"token": admin})
    assert entered.status_code == 204
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(entered.headers["set-cookie"].split("; "))
    # Another site's page cannot come in, nor a form.
    origin = {"Origin": "http://example.org"}
    assert httpx.post(f"{server.url}/login", json={"token": admin}, headers=origin).status_code == 403
    assert httpx.post(f"{server.url}/login", data={"token": admin}).status_code in (415, 422)


def test_a_token_that_may_only_read_changes_nothing_and_ends_when_it_is_revoked(server, browser) -> None:
    look = Looking(browser, server.url)
    look.begin(tokens(server).create("reader", "read"))
    look.open("/runs/untimed")
    look.links()
    before = control.pending(server.runs / "untimed")
    look.field("Hint to the model").send_keys("I may not", Keys.ENTER)
    look.see("this token may only read", ".q-notification")
    look.press("Candidate")
    look.press("Edit and evaluate")
    look.press("Evaluate")
    look.until(lambda: len([one for one in look.all(".q-notification") if "may only read" in one.text]) > 0)
    assert control.pending(server.runs / "untimed") == before
    tokens(server).revoke("reader")
    look.until(lambda: "/login" in browser.current_url)


def test_what_is_not_there_is_not_found(server, admin) -> None:
    cookies = {"ringsmith_token": admin}
    assert httpx.get(f"{server.url}/no-such-page", cookies=cookies).status_code == 404
    for method, path, status in (("GET", "/nothing", 404), ("DELETE", "/problems", 405)):
        answer = httpx.request(method, f"{server.api}{path}", cookies=cookies)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


def test_files_are_those_of_the_record(server, admin) -> None:
    cookies = {"ringsmith_token": admin}
    (server.runs / "long" / "traces").mkdir()
    (server.runs / "long" / "traces" / "t.json").write_text("{}")
    (server.runs / "long" / "traces" / "away.json").symlink_to("/etc/passwd")
    base = f"{server.url}/files/runs"
    got = httpx.get(f"{base}/long/traces/t.json", cookies=cookies)
    assert got.status_code == 200 and got.headers["content-disposition"].startswith("attachment")
    assert httpx.get(f"{base}/long/events.jsonl", cookies=cookies).text.count("\n") == 362
    for path in ("long/traces/away.json", "long/traces/..%2Fevents.jsonl", "..%2F..%2Fetc/events.jsonl", "x/page.html"):
        assert httpx.get(f"{base}/{path}", cookies=cookies).status_code == 404, path
