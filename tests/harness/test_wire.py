"""Messages between processes that do not trust each other."""

import json
import os
import socket
import struct
import threading
import time

import pytest

from harness import wire
from harness.wire import (
    MAX_BYTES,
    MAX_UNTRUSTED_BYTES,
    MAX_UNTRUSTED_DEPTH,
    Channel,
    ChannelClosedError,
    GarbledError,
    pair,
)


@pytest.fixture
def ends():
    ours, theirs = pair()
    with theirs:
        yield ours, theirs
        ours.close()


def frame(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def test_messages_arrive_whole_and_in_order(ends):
    ours, theirs = ends
    other = Channel(theirs)
    sent = [{"n": 1}, {"text": "ä\n", "nested": {"list": [1, 2.5, None, True]}}, {}]
    for message in sent:
        other.send(message)
    assert [ours.receive(1) for _ in sent] == sent
    ours.send({"back": 1})
    assert other.receive(1) == {"back": 1}


def test_a_message_may_arrive_byte_by_byte(ends):
    ours, theirs = ends
    for byte in frame(b'{"a": 1}')[:-1]:
        theirs.sendall(bytes([byte]))
        with pytest.raises(TimeoutError):
            ours.receive(0)
    theirs.sendall(b"}")
    assert ours.receive(0) == {"a": 1}


def test_untrusted_processes_may_say_less():
    too_long = struct.pack("<I", MAX_UNTRUSTED_BYTES + 1)
    for untrusted, answer in ((True, GarbledError), (False, TimeoutError)):  # from a trusted one, the rest may come
        ours, theirs = pair(untrusted=untrusted)
        with theirs:
            theirs.sendall(frame(b'{"a": 1}') + too_long)
            assert ours.receive(1) == {"a": 1}
            with pytest.raises(answer):
                ours.receive(0)
            ours.close()


def test_a_timeout_lasts_as_long_as_asked_and_loses_nothing(ends):
    ours, theirs = ends
    two = frame(b'{"a": 1}') + frame(b'{"b": 2}')
    theirs.sendall(two[:15])
    started = time.monotonic()
    assert ours.receive(5) == {"a": 1}
    with pytest.raises(TimeoutError):
        ours.receive(0.05)
    assert 0.05 <= time.monotonic() - started < 2
    theirs.sendall(two[15:])
    assert ours.receive(1) == {"b": 2}


def test_a_message_larger_than_the_socket_buffer(ends):
    ours, theirs = ends
    message = {"text": "x" * 3_000_000}
    sender = threading.Thread(target=Channel(theirs).send, args=(message,))
    sender.start()
    assert ours.receive(10) == message
    sender.join()


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b"",
        b"[1, 2]",
        b'"text"',
        b"null",
        b"{",
        b"\xff\xfe\x00",
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
    ],
    ids=lambda body: body[:8].decode(errors="replace"),
)
def test_garbage_is_garbled(ends, body):
    ours, theirs = ends
    theirs.sendall(frame(body))
    with pytest.raises(GarbledError):
        ours.receive(1)


def nested(depth: int) -> dict:
    """A message of so many levels, lists and objects in turn."""
    value: dict | list = {}
    for level in range(depth - 1):
        value = [value] if level % 2 == 0 else {"a": value}
    return value if isinstance(value, dict) else {"a": value[0]}


def test_untrusted_processes_may_nest_less(ends):
    """What can just be read could not be sent on."""
    ours, theirs = pair(untrusted=True)
    with theirs:
        other = Channel(theirs)
        for message in (nested(MAX_UNTRUSTED_DEPTH), {"many": [[1, {}]] * 1000}, {"text": '[{"' * 1000}):
            other.send(message)
            assert ours.receive(1) == message
        for depth in (MAX_UNTRUSTED_DEPTH + 1, 900):
            other.send(nested(depth))
            with pytest.raises(GarbledError):
                ours.receive(1)
        ours.close()
    trusted, theirs = ends
    Channel(theirs).send(nested(MAX_UNTRUSTED_DEPTH + 10))
    assert trusted.receive(1)


@pytest.fixture
def impatient(monkeypatch):
    """The channel to an untrusted process that soon gives up sending, and that process's socket."""
    monkeypatch.setattr(wire, "_SEND_S", 0.05)
    ours, theirs = pair(untrusted=True)
    with theirs:
        yield ours, theirs
        ours.close()


def test_an_untrusted_process_that_never_reads_is_given_up(impatient):
    ours, theirs = impatient
    message = {"text": "x" * 50_000}
    sent = 0
    with pytest.raises(ChannelClosedError):
        while sent < 1000:
            ours.send(message)
            sent += 1
    assert sent > 0
    with pytest.raises(ChannelClosedError):  # also of what would have room: half a message may be before it
        ours.send({})
    with pytest.raises(ChannelClosedError):
        ours.receive(1)
    other = Channel(theirs)
    assert [other.receive(1) for _ in range(sent)] == [message] * sent
    with pytest.raises(ChannelClosedError):
        other.receive(1)


def test_only_sending_is_limited_to_untrusted_processes(impatient):
    ours, theirs = impatient
    with pytest.raises(TimeoutError):
        ours.receive(0.2)
    with pytest.raises(TimeoutError):
        ours.receive_with_fds(1, 0.2)
    Channel(theirs).send({"late": 1})
    assert ours.receive(1) == {"late": 1}


def test_half_a_surrogate_pair_is_replaced(ends):
    """No record and no terminal could take it; a whole pair is text."""
    ours, theirs = ends
    Channel(theirs).send({"error": "bad \ud83d text", "whole": "\U0001f3d6"})
    message = ours.receive(1)
    assert message == {"error": "bad ? text", "whole": "\U0001f3d6"}
    assert json.dumps(message, ensure_ascii=False).encode()


def test_an_oversized_length_is_refused_before_its_data_comes(ends):
    ours, theirs = ends
    theirs.sendall(struct.pack("<I", MAX_BYTES + 1))
    with pytest.raises(GarbledError, match=str(MAX_BYTES + 1)):
        ours.receive(1)


def test_a_closed_peer_is_noticed_by_both_directions():
    ours, theirs = pair()
    theirs.sendall(frame(b'{"last": 1}') + b"\x05\x00")
    theirs.close()
    assert ours.receive(1) == {"last": 1}
    with pytest.raises(ChannelClosedError):
        ours.receive(1)
    with pytest.raises(ChannelClosedError):
        ours.send({"a": 1})
    ours.close()


def test_a_reset_peer_counts_as_closed():
    ours, theirs = pair()
    ours.send({"unread": 1})
    theirs.close()  # with unread data: the next read sees ECONNRESET
    with pytest.raises(ChannelClosedError):
        ours.receive(1)
    ours.close()


def read_end_that_says(text: bytes) -> int:
    read, write = os.pipe()
    os.write(write, text)
    os.close(write)
    return read


def test_file_descriptors_travel_with_a_message(ends):
    ours, theirs = ends
    fds = [read_end_that_says(b"one"), read_end_that_says(b"two")]
    Channel(theirs).send({"op": "take"}, tuple(fds))
    for fd in fds:
        os.close(fd)
    message, received = ours.receive_with_fds(8, 1)
    assert message == {"op": "take"}
    assert [os.read(fd, 10) for fd in received] == [b"one", b"two"]
    for fd in received:
        os.close(fd)


def test_file_descriptors_survive_a_timeout(ends):
    ours, theirs = ends
    whole, fd = frame(json.dumps({"op": "take"}).encode()), read_end_that_says(b"one")
    socket.send_fds(theirs, [whole[:7]], [fd])
    os.close(fd)
    with pytest.raises(TimeoutError):
        ours.receive_with_fds(8, 0.01)
    theirs.sendall(whole[7:])
    message, received = ours.receive_with_fds(8, 1)
    assert message == {"op": "take"} and os.read(received[0], 10) == b"one"
    os.close(received[0])
    theirs.sendall(frame(b"{}"))
    assert ours.receive_with_fds(8, 1) == ({}, [])


def test_file_descriptors_that_nobody_asked_for_are_not_kept(ends):
    ours, theirs = ends
    before = len(os.listdir("/proc/self/fd"))
    fd = read_end_that_says(b"one")
    Channel(theirs).send({"op": "take"}, (fd,))
    os.close(fd)
    assert ours.receive(1) == {"op": "take"}
    assert len(os.listdir("/proc/self/fd")) == before
