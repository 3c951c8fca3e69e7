"""Faults: failures at given instants, and their ends."""

from typing import TYPE_CHECKING, final

from simulations.scenario import Fault

if TYPE_CHECKING:
    from simulations.world import World


@final
class Faults:
    """The faults of a scenario."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def schedule(self) -> None:
        """Schedule all of them, each at its time."""
        engine = self._world.engine
        for fault in self._world.scenario.faults:
            engine.at(fault.at_s, self._begin, fault)
            if fault.until_s is not None:
                engine.at(fault.until_s, self._end, fault)

    def _begin(self, fault: Fault) -> None:
        machine = self._world.machines[fault.node]
        match fault.kind:
            case "node_down":
                machine.kill()
            case "pause":
                assert fault.until_s is not None
                if machine.broker is not None:
                    machine.broker.loop.pause(fault.until_s)
            case "link_cut":
                for peer in self._peers(fault):
                    self._world.network.cut(fault.node, peer)
            case "slow_cpu":
                machine.slowness *= fault.factor
            case "slow_store":
                machine.disk.factor *= fault.factor
            case "store_stop":
                machine.disk.stopped = True

    def _end(self, fault: Fault) -> None:
        machine = self._world.machines[fault.node]
        match fault.kind:
            case "node_down":
                machine.start()
            case "pause":
                pass  # It goes on by itself.
            case "link_cut":
                for peer in self._peers(fault):
                    self._world.network.heal(fault.node, peer)
            case "slow_cpu":
                machine.slowness /= fault.factor
            case "slow_store":
                machine.disk.factor /= fault.factor
            case "store_stop":
                machine.disk.stopped = False

    def _peers(self, fault: Fault) -> list[int]:
        if fault.peer is not None:
            return [fault.peer]
        return [index for index in range(self._world.scenario.nodes) if index != fault.node]
