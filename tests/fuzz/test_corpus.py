"""Inputs that a fuzzer found worth keeping, again, on the rooms as they are here."""

from typing import Any

import pytest

from tests.fuzz import corpus, targets
from tests.fuzz.seeds import seeds


def test_each_way_to_decode_a_kept_stream_finds_the_same_packets_and_the_same_error() -> None:
    inputs = [*seeds(), *corpus.read("decode")]
    assert len(inputs) > 500
    for data in inputs:
        targets.decode(data)


@pytest.mark.slow
def test_a_node_holds_nothing_of_a_stranger_who_has_said_a_kept_stream() -> None:
    inputs = [*seeds(), *corpus.read("converse")]
    assert len(inputs) > 500
    for data in inputs:
        targets.converse(data)


def test_the_targets_notice_a_decoder_that_loses_a_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    in_batches = targets.in_batches

    def one_less(*stream: Any) -> targets.Outcome:
        packets, error = in_batches(*stream)
        return packets[:-1], error

    monkeypatch.setattr(targets, "in_batches", one_less)
    data = next(seeds())
    with pytest.raises(AssertionError, match="other packets"):
        targets.decode(data)
