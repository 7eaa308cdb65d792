"""What `--ray-address` and `--ray-env` refuse, in one line, before anything is connected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from graft.launching.placement import Placement, read_environment
from spaces.errors import StudyError
from workers.pool.ray.access import check_access, stay_on_loopback

TOKEN = "c0ffee" * 8
REMOTE = "192.0.2.7:6379"
PLACEMENT = {"executor": "auto", "workers": None, "ray_address": REMOTE, "device": None, "width": None}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home folder with no token in it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def token_file(folder: Path, mode: int, text: str = TOKEN) -> Path:
    file = folder / "token"
    file.write_text(text)
    file.chmod(mode)
    return file


def refusal(address: str | None, **environment: str) -> str:
    with pytest.raises(StudyError) as caught:
        check_access(address, environment)
    text = str(caught.value)
    assert "\n" not in text
    assert TOKEN not in text
    return text


@pytest.mark.parametrize("address", [REMOTE, "head:6379", "ray://head:10001", "auto", "[2001:db8::1]:6379"])
def test_a_cluster_without_a_token_is_refused(address: str):
    message = refusal(address)
    assert message.startswith(f"--ray-address: {address!r} needs a token, and there is none at ")
    assert message.endswith("RAY_AUTH_TOKEN")
    assert "unset it and give the cluster a token" in refusal(address, RAY_AUTH_MODE="disabled")


@pytest.mark.parametrize("address", ["127.0.0.1:6379", "localhost:6379", "[::1]:6379", "127.8.0.1:1"])
def test_a_cluster_that_only_this_machine_reaches_may_go_without(address: str):
    check_access(address, {"RAY_AUTH_MODE": "disabled"})


def test_a_cluster_of_our_own_has_a_token_whether_one_is_set_or_not():
    check_access(None, {})
    check_access(None, {"RAY_AUTH_TOKEN": TOKEN})
    assert refusal(None, RAY_AUTH_MODE="disabled").endswith("unset it")


def test_a_cluster_of_our_own_is_told_to_listen_on_this_machine_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", raising=False)
    stay_on_loopback()
    assert os.environ.pop("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER") == "0"


def test_a_token_in_the_environment_or_in_a_file_of_ones_own_is_taken(home: Path):
    check_access(REMOTE, {"RAY_AUTH_TOKEN": TOKEN})
    check_access(REMOTE, {"RAY_AUTH_TOKEN_PATH": str(token_file(home, 0o600))})
    check_access(REMOTE, {"RAY_AUTH_TOKEN_PATH": str(token_file(home, 0o400))})
    (home / ".ray").mkdir()
    token_file(home, 0o600).rename(home / ".ray" / "auth_token")
    check_access(REMOTE, {})


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o611])
def test_a_token_file_that_others_can_read_is_refused_with_the_remedy(home: Path, mode: int):
    file = token_file(home, mode)
    assert refusal(REMOTE, RAY_AUTH_TOKEN_PATH=str(file)).endswith(f"can be read by others; chmod 600 {file}")


def test_an_empty_token_file_is_no_token(home: Path):
    assert "is empty" in refusal(REMOTE, RAY_AUTH_TOKEN_PATH=str(token_file(home, 0o600, "")))


def test_a_launch_checks_access_before_it_does_anything(home: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(StudyError, match="needs a token"):
        Placement(**PLACEMENT).resolve()
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    assert Placement(**PLACEMENT).resolve().executor == "ray"


def test_an_environment_for_the_nodes_is_read_from_yaml_or_json(tmp_path: Path):
    file = tmp_path / "env.yaml"
    file.write_text("pip: [entmax==1.3]\nenv_vars: {OMP_NUM_THREADS: '1'}\n")
    assert read_environment(str(file)) == {"pip": ["entmax==1.3"], "env_vars": {"OMP_NUM_THREADS": "1"}}
    file.write_text('{"conda": "torch"}')
    assert read_environment(str(file)) == {"conda": "torch"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("working_dir: /", "must say some of pip, uv, conda, env_vars, and nothing else"),
        ("- pip", "must say some of"),
        ("", "must say some of"),
        ("pip: [", "is not YAML"),
        ("env_vars: {A: 1}", "must be texts by name"),
        ("env_vars: [A]", "must be texts by name"),
        ("env_vars: {RAY_AUTH_TOKEN: x}", "RAY_AUTH_TOKEN in .* would be stored with the job"),
        ("!!python/object/apply:os.getcwd []", "is not YAML"),
    ],
)
def test_an_environment_that_is_none_is_refused_in_one_line(tmp_path: Path, text: str, message: str):
    file = tmp_path / "env.yaml"
    file.write_text(text)
    with pytest.raises(StudyError, match=message) as caught:
        read_environment(str(file))
    assert "\n" not in str(caught.value)


def test_an_environment_needs_a_cluster():
    with pytest.raises(StudyError, match=r"--ray-env: 'env\.yaml' needs --ray-address"):
        Placement(**{**PLACEMENT, "ray_address": None, "ray_env": "env.yaml"}).resolve()
    with pytest.raises(StudyError, match=r"--ray-env: gone\.yaml cannot be read"):
        read_environment("gone.yaml")
