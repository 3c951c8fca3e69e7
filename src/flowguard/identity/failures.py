"""FailureLimit: limits failed attempts per address; above the limit there is no check.

Checking a wrong password costs a thousand times as much as sending it. So each address has `BURST`
failures, and regains one every `REFILL_S`. Without any left, it is rejected at once, unless its
password is remembered as correct. For IPv6 the /64 network counts, because a host may use all its
addresses.
"""

from collections import OrderedDict
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final, final

BURST: Final = 20.0
REFILL_S: Final = 5.0
ADDRESSES_MAX: Final = 10_000


def origin_of(host: str) -> str:
    """Return the address that counts for a host, `[::1]` or `::1`, or `host` if it is no
    address."""
    try:
        address = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    return str(address.ipv4_mapped or IPv6Network((address, 64), strict=False))


@final
class FailureLimit:
    """Token buckets of the last `ADDRESSES_MAX` addresses with failures."""

    __slots__ = ("_addresses_max", "_spent")

    def __init__(self, addresses_max: int = ADDRESSES_MAX) -> None:
        self._addresses_max = addresses_max
        self._spent: OrderedDict[str, tuple[float, float, bool]] = OrderedDict()
        """Failures not yet regained, their time, and whether the limit was reported."""

    def __len__(self) -> int:
        return len(self._spent)

    def allows(self, address: str, now_s: float) -> bool:
        return self._count(address, now_s) <= BURST - 1

    def failed(self, address: str, now_s: float) -> bool:
        """Count a failure; return True if the address is limited from now on.

        This is returned once, until the address has regained all its failures.
        """
        before = self._count(address, now_s)
        was_reported = before > 0 and self._spent[address][2]
        is_limited = before + 1 > BURST - 1
        self._spent[address] = (before + 1, now_s, was_reported or is_limited)
        self._spent.move_to_end(address)
        if len(self._spent) > self._addresses_max:
            self._spent.popitem(last=False)
        return is_limited and not was_reported

    def _count(self, address: str, now_s: float) -> float:
        count, at_s, _ = self._spent.get(address, (0.0, now_s, False))
        return max(0.0, count - (now_s - at_s) / REFILL_S)
