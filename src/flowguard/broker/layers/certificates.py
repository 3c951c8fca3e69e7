"""Files of TLS that have expired: OpenSSL loads them without a warning, and peers reject them."""

import re
from base64 import b64decode
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from flowguard.errors import ConfigError
from flowguard.lines import read
from flowguard.network_settings import ClusterSettings, NetworkSettings

PEM: Final = re.compile(r"-----BEGIN (?:CERTIFICATE|X509 CRL)-----(.+?)-----END ", re.DOTALL)
VALIDITY: Final = re.compile(
    rb"(?:\x17\r\d{12}Z|\x18\x0f\d{14}Z)(?:\x17\r|\x18\x0f)(\d{12}|\d{14})Z", re.DOTALL
)
"""Start and end of a certificate or a list, in the only forms that RFC 5280, 4.1.2.5, allows."""


def expired(
    network: NetworkSettings, now_s: float, cluster: ClusterSettings | None = None
) -> list[str]:
    """Return a sentence for each file of these settings in which something has expired."""
    lists = [str(each) for each in (network.crl, *[each.crl for each in network.listeners])]
    found: list[str] = []
    for path, end_s in expiries(network, cluster).items():
        if end_s <= now_s:
            what, effect = "a certificate in it", "peers reject it"
            if path in lists:
                what, effect = "its list of revoked certificates", "each client is rejected"
            date = datetime.fromtimestamp(end_s, UTC).date()
            found.append(f"{path}: {what} expired on {date}, so {effect}: renew")
    return found


def expiries(network: NetworkSettings, cluster: ClusterSettings | None = None) -> dict[str, float]:
    """Return the Unix time at which the first certificate or list of each file expires."""
    lists = [network.crl, *[listener.crl for listener in network.listeners]]
    paths = [network.cert, network.client_ca, *lists]
    paths += [] if cluster is None else [cluster.cert, cluster.ca]
    for listener in network.listeners:
        paths += [listener.cert, listener.chain, listener.client_ca]
        paths += [each.cert for each in listener.certs]
    found: dict[str, float] = {}
    for path in dict.fromkeys(filter(None, paths)):
        with suppress(ConfigError):  # A listener has read each file that it uses.
            end = min(_ends(read(path).decode(errors="replace")), default=None)
            if end is not None:
                found[str(path)] = end.timestamp()
    return found


def _ends(text: str) -> list[datetime]:
    """Return when each certificate or list of a file expires."""
    found = [VALIDITY.search(b64decode(each)) for each in PEM.findall(text)]
    ends = [each[1].decode() for each in found if each is not None]
    years = {12: "%y", 14: "%Y"}
    return [datetime.strptime(f"{end}+0000", f"{years[len(end)]}%m%d%H%M%S%z") for end in ends]
