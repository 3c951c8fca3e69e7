"""Any other broker beside ours: `--peer NAME=FILE`, where FILE is TOML.

    command = ["/opt/mosquitto-2.1/sbin/mosquitto", "-c", "$config"]
    version = ["/opt/mosquitto-2.1/sbin/mosquitto", "-h"]
    remark = "default build"
    config = '''
    listener $port 127.0.0.1
    allow_anonymous true
    '''
    durable = '''
    persistence true
    persistence_location $folder/
    '''

`$port`, `$folder` (its own, empty, gone afterwards) and `$config` (a file with what `config` says,
and in durable rows `durable`) are filled in. The first line that the version command prints is in
the table's footnotes: no figure without it.
"""

import shutil
import subprocess
import tomllib
from pathlib import Path
from string import Template

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .brokers import Broker
from .build import Unavailable

VERSION_LIMIT_S = 30


class PeerFile(BaseModel):
    """What FILE says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: list[str] = Field(min_length=1)
    version: list[str] = Field(min_length=1)
    config: str = ""
    durable: str = ""
    remark: str = ""


class Peer(Broker):
    def __init__(self, name: str, file: PeerFile) -> None:
        self.name = name
        self.remark = file.remark
        self._file = file

    def prepare(self) -> str:
        program = self._file.command[0]
        if shutil.which(program) is None:
            raise Unavailable(f"there is no program {program}")
        try:
            done = subprocess.run(
                self._file.version,
                capture_output=True,
                text=True,
                check=False,
                timeout=VERSION_LIMIT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"its version command failed: {error}") from error
        lines = (done.stdout or done.stderr).strip().splitlines()
        if not lines:
            raise Unavailable("its version command prints nothing")
        return lines[0].strip()

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        config = folder / "config"
        values = {"port": str(port), "folder": str(folder), "config": str(config)}
        text = self._file.config + (self._file.durable if scenario.startswith("durable") else "")
        config.write_text(Template(text).substitute(values))
        return [Template(word).substitute(values) for word in self._file.command]


def read_peer(argument: str) -> Peer:
    """`NAME=FILE`; raises `ValueError` that says what is wrong with it."""
    name, equals, path = argument.partition("=")
    if not (name and equals and path):
        raise ValueError(f"--peer {argument}: NAME=FILE is expected")
    try:
        return Peer(name, PeerFile.model_validate(tomllib.loads(Path(path).read_text())))
    except OSError as error:
        raise ValueError(f"--peer {argument}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ValueError(f"{path}: {found}") from error
