"""How long a test waits for what must come: on a starved machine, too, only a hang takes longer."""

HANG_S = 900.0
