"""PUBACK, PUBREC, PUBREL, PUBCOMP: the answers to answers, also to those that make no sense."""

import pytest

from flowguard.codec.packets import (
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsubscribe,
)
from flowguard.node.connect.authentication import Hooks
from flowguard.types import Properties, ReasonCode, SubscriptionOptions
from tests.support.stage import Stage

# --- Request Problem Information -------------------------------------------------------------


class NobodyMay:
    """Refuses everything."""

    def may_publish(self, client_id: str, topic: str) -> bool:
        return False

    def may_subscribe(self, client_id: str, filter: str) -> bool:
        return False


@pytest.mark.spec("MQTT-3.1.2-29")
def test_a_client_that_wants_no_problem_information_gets_bare_answers() -> None:
    stage = Stage(hooks=Hooks(authorizer=NobodyMay()))
    client = stage.connect("c", request_problem_information=0)
    client.publish("t", qos=1)
    client.publish("t", qos=2)
    client.send(Pubrec(70), Pubrel(71))
    client.send(Subscribe(72, (("t", SubscriptionOptions()),)), Unsubscribe(73, ("t",)))
    answers = client.take()
    assert len(answers) == 6
    assert all(answer.properties == Properties() for answer in answers)
    assert all(
        answer.reason_codes[0] == ReasonCode.NOT_AUTHORIZED
        for answer in answers
        if isinstance(answer, Suback)
    )
