"""The database: SQLite and a real PostgreSQL."""

import threading
import time

import pytest
from sqlalchemy import func, select

from harness.errors import HarnessError, UsageError
from service.errors import ConflictError
from service.jobs.store import Once, Store, default_url
from service.jobs.tables import JobRow, KeyRow

ONCE = Once("me", "key", "fingerprint")


def row(job_id: str, state: str = "queued") -> JobRow:
    return JobRow(kind="run", id=job_id, state=state, asked='{"text": "\\u0000 é"}', by="", at=time.time(), error="")


def test_jobs_survive_the_process_and_are_listed_oldest_first(url):
    store = Store(url)
    with store.writes() as session:
        session.add_all([row("b"), row("a", "running"), row("c", "ended")])
    store.set_job("run", "b", "ended", error="why")
    store.close()
    store = Store(url)
    assert [job.id for job in store.unfinished()] == ["a"]
    job = store.job("run", "b")
    assert job is not None and job.error == "why" and job.ended_at is not None and job.asked == '{"text": "\\u0000 é"}'
    store.close()


def test_a_request_with_a_key_is_carried_out_once(store):
    done: list[str] = []

    def act(session) -> str:
        session.add(row(f"r{len(done)}"))
        done.append("")
        return "answer"

    assert store.once(ONCE, act) == ("answer", False)
    assert store.once(ONCE, act) == ("answer", True)
    assert store.once(Once("you", "key", "fingerprint"), act) == ("answer", False)
    assert len(done) == 2
    with pytest.raises(ConflictError, match="another request"):
        store.once(Once("me", "key", "other"), act)
    assert store.once(None, act) == ("answer", False)


def test_what_fails_leaves_neither_key_nor_row(store):
    def fail(session) -> str:
        session.add(row("r"))
        session.flush()
        raise UsageError("cannot be")

    with pytest.raises(UsageError, match="cannot be"):
        store.once(ONCE, fail)
    with store.reads() as session:
        assert session.scalar(select(func.count()).select_from(KeyRow)) == 0
    assert store.job("run", "r") is None
    assert store.once(ONCE, lambda session: "later") == ("later", False)


def test_the_same_request_from_many_threads_is_carried_out_once(store):
    done, answers = [], []

    def act(session) -> str:
        done.append("")
        time.sleep(0.05)
        return "answer"

    threads = [threading.Thread(target=lambda: answers.append(store.once(ONCE, act))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [("answer", False)] + [("answer", True)] * 7
    assert len(done) == 1


def test_old_keys_are_forgotten(store):
    store.once(ONCE, lambda session: "answer")
    with store.writes() as session:
        session.get(KeyRow, ("me", "key")).at -= 8 * 86400
    store.forget_old_keys()
    assert store.once(ONCE, lambda session: "anew") == ("anew", False)


@pytest.mark.parametrize("bad", ["nonsense", "mysql://host/name", "sqlite", "oracle://a"])
def test_a_url_that_is_none(bad):
    with pytest.raises(UsageError):
        Store(bad)


def test_a_database_that_is_away_is_told_without_its_password(tmp_path):
    with pytest.raises(HarnessError) as error:
        Store("postgresql://user:hunter2-password@127.0.0.1:1/name")
    assert "hunter2" not in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(HarnessError):
        Store(default_url(tmp_path / "missing"))
