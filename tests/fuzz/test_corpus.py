"""Inputs that a fuzzer found worth keeping, again, on the rooms as they are here."""

from typing import Any

import pytest

from tests.fuzz import converse, corpus, decode
from tests.fuzz.seeds import seeds


def test_each_way_to_decode_a_kept_stream_finds_the_same_packets_and_the_same_error() -> None:
    inputs = [*seeds(), *corpus.read("decode")]
    assert len(inputs) > 500
    for data in inputs:
        decode.once(data)


@pytest.mark.slow
def test_a_node_holds_nothing_of_a_stranger_who_has_said_a_kept_stream() -> None:
    inputs = [*seeds(), *corpus.read("converse")]
    assert len(inputs) > 500
    for data in inputs:
        converse.once(data)


def test_the_targets_notice_a_decoder_that_loses_a_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    in_batches = decode.in_batches

    def one_less(*stream: Any) -> decode.Outcome:
        packets, error = in_batches(*stream)
        return packets[:-1], error

    monkeypatch.setattr(decode, "in_batches", one_less)
    data = next(seeds())
    with pytest.raises(AssertionError, match="other packets"):
        decode.once(data)


def test_the_targets_notice_a_connection_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converse.Stranger, "close", lambda stranger: None)
    data = next(seeds())
    with pytest.raises(AssertionError):
        converse.once(data)
