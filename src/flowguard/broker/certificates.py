"""Certificates that have expired: OpenSSL loads them without a warning, and peers reject them."""

import ssl
from _ssl import _test_decode_cert  # type: ignore[attr-defined]
from datetime import UTC, datetime

from flowguard.network_settings import NetworkSettings


def expired(network: NetworkSettings, now_s: float) -> list[str]:
    """Return a sentence for each file of these settings with a certificate that has expired.

    `TlsFiles.load` has read the files before, so they are readable and hold certificates.
    """
    paths = [network.cert, network.client_ca]
    for listener in network.listeners:
        paths += [listener.cert, listener.client_ca, *[each.cert for each in listener.certs]]
    found: list[str] = []
    for path in dict.fromkeys(paths):
        if path is None:
            continue
        chain = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        chain.load_verify_locations(path)
        read = [_test_decode_cert(path), *chain.get_ca_certs()]  # The second has authorities only.
        ends_s = min(ssl.cert_time_to_seconds(str(each["notAfter"])) for each in read)
        if ends_s <= now_s:
            day = datetime.fromtimestamp(ends_s, UTC).date()
            found.append(f"{path}: a certificate in it expired on {day}, so peers reject it: renew")
    return found
