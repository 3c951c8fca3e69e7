"""The image: its Dockerfile is read, and what it would start is started without a daemon."""

import base64
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from flowguard.codec.packets import Connack
from flowguard.identity.passwords import PasswordFile
from tests.deploy.checkers import checked
from tests.deploy.unpacked_image import FILE, ROOT, Container, Image, copies, stages, unpacked
from tests.flowguard.workers.clients import Client, proxied
from tests.support.authority import Authority
from tests.support.caller import Caller
from tests.support.commands import flowguard
from tests.support.patience import HANG_S
from tests.support.redis_server import ALWAYS, RedisServer, needs_redis, redis_server
from tests.torture.nodes import free_block

LAST = dict(stages()[-1])


def test_context_has_what_is_copied_and_nothing_else() -> None:
    copied = {each for stage in stages() for sources, _ in copies(stage) for each in sources}
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines
    assert all((ROOT / each).exists() for each in copied)
    assert {each for each in copied if not each.startswith("deploy/docker/")} | {
        "deploy/docker"
    } == allowed


def test_everything_that_the_wheel_is_made_of_is_copied() -> None:
    copied = {each for sources, _ in copies(stages()[0]) for each in sources}
    packages = re.search(r"^packages = \[(.*)\]", (ROOT / "pyproject.toml").read_text(), re.M)
    assert packages is not None
    assert {name.strip(' "').split("/")[0] for name in packages[1].split(",")} <= copied


def test_all_that_serve_can_be_asked_for_is_in_it() -> None:
    installed = re.search(r'"\$\{wheel\}\[(.*)\]"', str(stages()[0]))
    assert installed is not None
    assert {*installed[1].split(",")} == {"redis", "kafka", "websockets", "passwords", "jwt"}


def test_last_stage_has_no_compiler_and_no_root() -> None:
    words = [word for word, _ in stages()[-1]]
    assert LAST["USER"] == "10001:10001"
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert "gcc" not in str(stages()[-1])
    assert not any(word == "ADD" or "curl" in rest for stage in stages() for word, rest in stage)


@pytest.mark.peers
@pytest.mark.slow
def test_hadolint_finds_nothing() -> None:
    ended = checked("hadolint", FILE)
    assert (ended.returncode, ended.stdout) == (0, "")


@pytest.mark.peers
def test_docker_accepts_it() -> None:
    docker = shutil.which("docker")
    if (
        docker is None
        or subprocess.run([docker, "info"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no Docker runs here: nobody builds the image")
    subprocess.run(
        [docker, "build", "--check", "-f", str(FILE), str(ROOT)], check=True, timeout=HANG_S
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return unpacked(tmp_path_factory.mktemp("image"))


@pytest.fixture
def image(built: Image) -> Image:
    """The image with an empty volume, and no settings of a user."""
    for folder in (built.data, built.settings):
        shutil.rmtree(folder)
        folder.mkdir()
    return built


def status(container: Container, path: str, host: str = "127.0.0.2", token: str = "") -> int:
    request = urllib.request.Request(f"http://{host}:{container.http_port}{path}")
    if token:
        words = base64.b64encode(f"me:{token}".encode()).decode()
        request.add_header("Authorization", f"Basic {words}")
    try:
        with urllib.request.urlopen(request, timeout=HANG_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def connects(container: Container) -> bool:
    with Caller(container.broker) as client:
        return isinstance(client.read(), Connack)


def address_of_this_machine() -> str:
    """Return an address that is not of loopback. Skips if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # Sends nothing; the kernel chooses the address.
        except OSError:
            pytest.skip("this machine has no address besides loopback")
        return str(probe.getsockname()[0])


@pytest.mark.slow
def test_without_settings_it_serves_beyond_loopback_and_says_how_to_be_safe(image: Image) -> None:
    with image.running() as container:
        text = " ".join(container.said)
        assert "Any client that reaches port" in text
        assert "mount its folder at" in text
        assert str(image.data / "http-token") in text
        assert connects(container)
        assert status(container, "/health") == 200
        check = LAST["HEALTHCHECK"].partition("CMD ")[2].replace("9883", str(container.http_port))
        done = subprocess.run(json.loads(check), env=image.environment(), check=False)
        assert done.returncode == 0
        token = (image.data / "http-token").read_text()
    assert '"event": "drained"' in container.broker.log.read_text()
    with image.running() as again:
        assert connects(again)
        assert (image.data / "http-token").read_text() == token


@pytest.mark.slow
def test_http_port_asks_other_machines_for_the_token(image: Image) -> None:
    host = address_of_this_machine()
    with image.running() as container:
        token = (image.data / "http-token").read_text().strip()
        assert status(container, "/metrics", host) == 401
        assert status(container, "/metrics", host, token) == 200
        assert status(container, "/", host, token) == 200
        assert status(container, "/health", host) == 200


@pytest.mark.slow
def test_settings_of_the_user_replace_those_of_the_image(image: Image) -> None:
    (image.settings / "token").write_text("0123456789abcdef\n")
    (image.settings / "flowguard.toml").write_text(
        '[network]\nlisteners = ["127.0.0.2:0"]\n[http]\ntoken_file = "token"\n'
    )
    with image.running("--workers", "2") as container:
        assert "Any client" not in str(container.said)
        assert not (image.data / "http-token").exists()
        assert connects(container)
    stores = (image.data / "store").glob("worker-*")
    assert {path.name for path in stores} == {"worker-0", "worker-1"}


@pytest.mark.slow
def test_other_words_are_a_command(image: Image) -> None:
    (image.settings / "flowguard.toml").write_text('[network]\nlisteners = ["0.0.0.0:1883"]\n')
    done = image.run("check", "flowguard.toml")
    assert done.returncode == 2
    assert "--allow-plaintext" in done.stderr
    assert "serve" in image.run("serve", "--help").stdout


def test_volume_that_cannot_be_written_is_an_error_with_the_user(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o500)
    user = 65_534 if os.geteuid() == 0 else None
    done = subprocess.run(
        ["sh", "-s"],
        input=Image(tmp_path).here((FILE.parent / "start.sh").read_text()),
        user=user,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (73, "")
    assert f"must belong to user {user or os.geteuid()}" in done.stderr


@pytest.mark.slow
def test_settings_of_the_chart_serve_with_tls_users_and_rules(image: Image) -> None:
    authority = Authority(image.root)
    pair = authority.issue("127.0.0.2")
    shutil.copy(pair.cert, image.settings / "tls.crt")
    shutil.copy(pair.key, image.settings / "tls.key")
    (image.settings / "users").write_text(PasswordFile({}).with_user("ann", b"secret").text())
    (image.settings / "rules.toml").write_text('[roles.device]\nusers = ["*"]\npublish = ["#"]\n')
    values = yaml.safe_load((ROOT / "deploy" / "chart" / "values.yaml").read_text())
    (image.settings / "flowguard.toml").write_text(image.here(values["config"]))
    with image.running() as container:
        broker = container.broker
        words = ("connect", "--clients", "1", "--hold", "0", "--user", "ann")
        access = ("--cafile", str(authority.cert), "--retry", "none")
        for password, code in (("secret", 0), ("wrong", 1)):
            given = {"STORM_PASSWORD": password}
            place = f"mqtts://{broker.host}:{broker.port}"
            assert flowguard("storm", place, *words, *access, environment=given)[0] == code


@pytest.mark.slow
def test_compose_file_with_redis_starts_both(image: Image, tmp_path: Path) -> None:
    needs_redis()
    services = yaml.safe_load((FILE.parent / "compose.redis.yml").read_text())["services"]
    _, *words = services["redis"]["command"]
    options = {
        words[at].removeprefix("--"): words[at + 1]
        for at in range(0, len(words), 2)
        if words[at] not in ("--save",)
    }
    assert options.items() >= ALWAYS.items()
    server = RedisServer(tmp_path / "redis", options)
    server.start()
    try:
        *serve, url = services["flowguard"]["command"]
        assert shlex.join(serve) == "--store redis --redis-url"
        assert url == "redis://redis:6379/0"
        with image.running(*serve, server.url) as container:
            assert connects(container)
    finally:
        server.stop()
    assert not list((image.data / "store").glob("**/CURRENT"))


@pytest.mark.slow
def test_compose_file_of_a_cluster_starts_nodes_that_share_a_token(
    image: Image, tmp_path: Path
) -> None:
    needs_redis()
    file = yaml.safe_load((FILE.parent / "compose.cluster.yml").read_text())
    services, settings = file["services"], file["configs"]["node"]["content"]
    haproxy = services["haproxy"]["networks"]["default"]["ipv4_address"]
    settings = image.here(settings).replace(haproxy, "127.0.0.1")
    with redis_server(tmp_path / "redis", ALWAYS) as redis, ExitStack() as running:
        text = settings.replace("redis://redis:6379/0", redis.url)
        (image.settings / "flowguard.toml").write_text(text)
        nodes = []
        for name in ("node-1", "node-2"):
            given = services[name]["environment"].items()
            environment = {key: image.here(value) for key, value in given}
            environment["FLOWGUARD_CLUSTER__SHARDS"] = "2"  # Fewer processes.
            option, address = services[name]["command"]
            assert (option, address) == ("--cluster", f"{name}:7000")
            words = (option, f"localhost:{free_block(4)}", "--data", str(tmp_path / name))
            nodes.append(running.enter_context(image.running(*words, environment=environment)))
        token = (image.root / "run" / "flowguard" / "http-token").read_text().strip()
        for node in nodes:
            assert status(node, "/metrics", address_of_this_machine(), token) == 200
            client = Client(proxied((node.broker.host, node.broker.port)), f"at-{node.http_port}")
            client.accepted()
            client.close()
