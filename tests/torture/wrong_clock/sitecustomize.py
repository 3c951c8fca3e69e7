"""Let the wall clock of a Python process be wrong by the seconds that a file has.

The directory of this file is in PYTHONPATH of such a process. Other clocks are as they are.
"""

import os
import time
from pathlib import Path

_OFFSET_S = Path(os.environ["WRONG_CLOCK"])
_right_s = time.time


def _wrong_s() -> float:
    return _right_s() + float(_OFFSET_S.read_text())


time.time = _wrong_s
