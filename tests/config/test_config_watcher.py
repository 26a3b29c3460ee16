"""Following a settings file through all that happens to files."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prism.config.document import LIMIT_BYTES, Settings
from prism.config.watcher import Event, SettingsThread, SettingsWatcher, read_settings
from prism.errors import ConfigError, InvalidDocument, MissingDocument

PATIENCE_SECONDS = 20.0


def document(generation: int, quota: float = 0.1, candidate: str = "") -> str:
    spec = f"{{scheduler: {{coldLane: {{quota: {quota}}}}}}}"
    return f"stable: {{source: ns/a, uid: u, generation: {generation}, spec: {spec}}}\n{candidate}"


class Follower:
    """A watcher with a clock that moves past the settling time at each look."""

    def __init__(self, path: Path, pod_name: str = "pod") -> None:
        self.watcher = SettingsWatcher(path, pod_name, settle_seconds=1.0)
        self.now = 0.0

    def look(self) -> Event | None:
        """Two polls, far enough apart for a change to settle; the last answer counts."""
        first = self.watcher.poll(self.now)
        self.now += 2.0
        return first or self.watcher.poll(self.now)

    def generation(self) -> int:
        event = self.look()
        assert isinstance(event, Settings)
        return event.generation

    def refusal(self) -> ConfigError:
        event = self.look()
        assert isinstance(event, ConfigError)
        assert self.watcher.refusal is event
        return event


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "settings.yaml"


@pytest.fixture
def follower(path: Path) -> Follower:
    return Follower(path)


def replace(path: Path, text: str) -> None:
    """As editors and kubelets do: a new file under the old name."""
    beside = path.with_name("beside")
    beside.write_text(text)
    beside.replace(path)


# --- good documents ---------------------------------------------------------------------------------------------


def test_absent_at_first_is_nothing_to_report(follower: Follower) -> None:
    assert follower.look() is None
    assert follower.watcher.settings == Settings.defaults()
    assert follower.watcher.refusal is None


def test_the_first_look_counts_at_once(follower: Follower, path: Path) -> None:
    path.write_text(document(7))
    event = follower.watcher.poll(0.0)
    assert isinstance(event, Settings)
    assert event.generation == 7


def test_a_change_is_reported_once(follower: Follower, path: Path) -> None:
    path.write_text(document(1))
    assert follower.generation() == 1
    replace(path, document(2))
    assert follower.generation() == 2
    assert follower.look() is None


def test_two_fields_changed_together_are_adopted_together(follower: Follower, path: Path) -> None:
    path.write_text(document(1, quota=0.1))
    follower.look()
    replace(path, document(2, quota=0.7))
    event = follower.look()
    assert isinstance(event, Settings)
    assert (event.generation, event.spec.scheduler.cold_lane.quota) == (2, 0.7)


def test_a_change_that_says_the_same_is_not_reported(follower: Follower, path: Path) -> None:
    path.write_text(document(1))
    follower.look()
    replace(path, "# a comment\n" + document(1))
    assert follower.look() is None


def test_a_change_for_other_pods_is_not_reported(follower: Follower, path: Path) -> None:
    path.write_text(document(1))
    follower.look()
    replace(path, document(1, candidate="candidate: {source: ns/a, generation: 2, spec: {}, pods: [other]}"))
    assert follower.look() is None


def test_a_pod_follows_into_the_candidate_and_back(follower: Follower, path: Path) -> None:
    path.write_text(document(1))
    follower.look()
    replace(path, document(1, candidate="candidate: {source: ns/a, generation: 2, spec: {}, pods: [pod]}"))
    assert follower.generation() == 2
    assert follower.watcher.settings.role == "candidate"
    replace(path, document(1))
    assert follower.generation() == 1


def test_the_defaults_written_out_replace_what_was_set(follower: Follower, path: Path) -> None:
    path.write_text(document(3))
    follower.look()
    replace(path, "stable: {source: defaults, generation: 4}")
    assert follower.generation() == 4
    assert follower.watcher.settings.spec == Settings.defaults().spec


# --- bad documents ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (document(2).replace("0.1", "abc").encode(), "invalid_value"),
        (document(2).replace("0.1", ".nan").encode(), "invalid_value"),
        (document(2).replace("0.1", "-1").encode(), "invalid_value"),
        (b"", "empty"),
        (b"stable: {", "not_yaml"),
        (b"\xff\xfe", "not_utf8"),
    ],
)
def test_a_bad_change_keeps_the_last_good_settings(follower: Follower, path: Path, content: bytes, reason: str) -> None:
    path.write_text(document(1))
    follower.look()
    path.write_bytes(content)
    assert follower.refusal().reason == reason
    assert follower.look() is None
    assert follower.watcher.settings.generation == 1


def test_the_next_good_change_recovers(follower: Follower, path: Path) -> None:
    path.write_text("stable: {")
    follower.refusal()
    replace(path, document(2))
    assert follower.generation() == 2
    assert follower.watcher.refusal is None


def test_the_last_good_document_comes_back_without_complaint(follower: Follower, path: Path) -> None:
    path.write_text(document(1))
    follower.look()
    replace(path, "nonsense")
    follower.refusal()
    replace(path, document(1))
    assert follower.generation() == 1
    assert follower.watcher.refusal is None


def test_each_bad_change_is_refused_for_itself(follower: Follower, path: Path) -> None:
    path.write_text("nonsense")
    assert follower.refusal().reason == "wrong_form"
    replace(path, "stable: {")
    assert follower.refusal().reason == "not_yaml"
    replace(path, "nonsense")
    assert follower.refusal().reason == "wrong_form"


def test_a_file_that_is_gone_is_missed_once(follower: Follower, path: Path) -> None:
    path.write_text(document(5))
    follower.look()
    path.unlink()
    refusal = follower.refusal()
    assert isinstance(refusal, MissingDocument)
    assert "generation 5" in str(refusal)
    assert follower.look() is None
    assert follower.watcher.settings.generation == 5


def test_a_file_that_comes_back_is_adopted_and_missed_again(follower: Follower, path: Path) -> None:
    path.write_text(document(5))
    follower.look()
    path.unlink()
    follower.refusal()
    path.write_text(document(5))
    assert follower.generation() == 5
    path.unlink()
    assert isinstance(follower.refusal(), MissingDocument)


# --- files that are no files ------------------------------------------------------------------------------------


def directory(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize("make", [directory, pipe, device, loop, listening])
def test_what_is_no_regular_file_is_refused_at_once(
    follower: Follower, path: Path, make: Callable[[Path], None]
) -> None:
    make(path)
    refusal = follower.refusal()
    assert refusal.reason == "unreadable"
    assert str(path) in str(refusal)
    assert follower.look() is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_refused(follower: Follower, path: Path) -> None:
    path.write_text(document(1))
    path.chmod(0)
    assert "permissions" in str(follower.refusal())


def test_a_directory_leaves_no_descriptor_open(follower: Follower, path: Path) -> None:
    path.mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        follower.look()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_no_more_of_a_huge_file_is_read_than_shows_that_it_is_huge(follower: Follower, path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(100 * 1024 * 1024)
    began = time.monotonic()
    assert follower.refusal().reason == "too_large"
    assert str(LIMIT_BYTES) in str(follower.watcher.refusal)
    assert time.monotonic() - began < 1.0


def test_a_path_through_a_file_is_absent(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert Follower(tmp_path / "file" / "settings.yaml").look() is None


# --- files being written ----------------------------------------------------------------------------------------


def test_a_change_waits_until_it_has_settled(path: Path) -> None:
    path.write_text(document(1))
    watcher = SettingsWatcher(path, None, settle_seconds=1.0)
    watcher.poll(0.0)
    path.write_text(document(2))
    assert watcher.poll(1.0) is None
    assert watcher.settling
    assert watcher.poll(1.5) is None
    assert isinstance(watcher.poll(2.0), Settings)
    assert not watcher.settling


@pytest.mark.parametrize(
    "half", ["", "stable: {source: ns/a, gen", "stable: {source: ns/b, generation: 9, spec: {}}\n"]
)
def test_half_a_file_is_neither_adopted_nor_refused(path: Path, half: str) -> None:
    path.write_text(document(1))
    watcher = SettingsWatcher(path, None, settle_seconds=1.0)
    watcher.poll(0.0)
    path.write_text(half)
    assert watcher.poll(1.0) is None
    path.write_text(document(2))
    assert watcher.poll(1.9) is None
    event = watcher.poll(3.0)
    assert isinstance(event, Settings)
    assert (event.source, event.generation) == ("ns/a", 2)


def test_a_change_taken_back_before_it_settled_never_was(path: Path) -> None:
    path.write_text(document(1))
    watcher = SettingsWatcher(path, None, settle_seconds=1.0)
    watcher.poll(0.0)
    path.unlink()
    assert watcher.poll(1.0) is None
    path.write_text(document(1))
    assert watcher.poll(3.0) is None
    assert not watcher.settling


def mount(volume: Path, version: str, text: str | None) -> None:
    """As a kubelet publishes a volume: a dated folder, then the link `..data` swapped onto it."""
    folder = volume / f"..{version}"
    folder.mkdir()
    if text is not None:
        (folder / "isvc.yaml").write_text(text)
    (volume / "..data_tmp").symlink_to(folder.name)
    (volume / "..data_tmp").rename(volume / "..data")


def test_a_link_before_its_target_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "isvc.yaml").symlink_to("..data/isvc.yaml")
    follower = Follower(tmp_path / "isvc.yaml")
    assert follower.look() is None
    mount(tmp_path, "one", document(1))
    assert follower.generation() == 1


def test_a_swapped_volume_is_followed(tmp_path: Path) -> None:
    (tmp_path / "isvc.yaml").symlink_to("..data/isvc.yaml")
    mount(tmp_path, "one", document(1, quota=0.2))
    follower = Follower(tmp_path / "isvc.yaml")
    assert follower.generation() == 1
    mount(tmp_path, "two", document(2, quota=0.3))
    assert follower.generation() == 2
    mount(tmp_path, "three", None)
    assert isinstance(follower.refusal(), MissingDocument)
    assert follower.watcher.settings.generation == 2


def test_a_file_replaced_all_the_time_is_never_read_in_pieces(path: Path) -> None:
    path.write_text(document(0, quota=0.0))
    watcher = SettingsWatcher(path, None, settle_seconds=0.0)
    done = threading.Event()

    def rewrite() -> None:
        for number in range(150):
            replace(path, "#" * (number * 90) + "\n" + document(number, quota=number / 1000))
        done.set()

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        while not done.is_set():
            event = watcher.poll(0.0)
            assert not isinstance(event, ConfigError)
            assert watcher.settings.spec.scheduler.cold_lane.quota in (watcher.settings.generation / 1000, 0.1)
    finally:
        writer.join()
    watcher.poll(0.0)
    assert watcher.settings.generation == 149


# --- at start ---------------------------------------------------------------------------------------------------


def test_a_start_reads_the_file(path: Path) -> None:
    path.write_text(document(4))
    assert read_settings(path, None).generation == 4


def test_a_start_without_a_file_has_the_defaults(path: Path) -> None:
    assert read_settings(path, None) == Settings.defaults()


def test_a_start_on_a_bad_file_fails(path: Path) -> None:
    path.mkdir()
    with pytest.raises(InvalidDocument, match="give the path of a settings document"):
        read_settings(path, None)


# --- the thread -------------------------------------------------------------------------------------------------


class Events(list[Event]):
    """What a thread reported."""

    def wait(self, count: int) -> None:
        limit = time.monotonic() + PATIENCE_SECONDS
        while len(self) < count:
            assert time.monotonic() < limit, f"{len(self)} of {count} events"
            time.sleep(0.005)


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def thread(path: Path, events: Events) -> Iterator[SettingsThread]:
    watcher = SettingsWatcher(path, None, settle_seconds=0.01)
    thread = SettingsThread(watcher, poll_seconds=0.02, on_event=events.append)
    yield thread
    thread.stop()
    if thread.ident is not None:
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_before_the_start_the_defaults_are_in_force(thread: SettingsThread) -> None:
    assert thread.latest() == Settings.defaults()
    assert thread.daemon


def test_the_file_is_in_force_when_start_returns(thread: SettingsThread, path: Path, events: Events) -> None:
    path.write_text(document(1))
    thread.start()
    assert thread.latest().generation == 1
    assert [thread.latest()] == events


def test_a_change_is_published_and_announced(thread: SettingsThread, path: Path, events: Events) -> None:
    thread.start()
    replace(path, document(1))
    events.wait(1)
    assert thread.latest() is events[0]


def test_a_refusal_is_announced_while_the_last_good_settings_stay(
    thread: SettingsThread, path: Path, events: Events
) -> None:
    path.write_text(document(1))
    thread.start()
    replace(path, "nonsense")
    events.wait(2)
    assert thread.refusal() is events[1]
    assert thread.latest() is events[0]


def test_a_listener_that_fails_does_not_end_the_thread(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen = Events()

    def listen(event: Event) -> None:
        seen.append(event)
        raise RuntimeError("no channel")

    path.write_text(document(1))
    thread = SettingsThread(SettingsWatcher(path, None, settle_seconds=0.0), poll_seconds=0.01, on_event=listen)
    thread.start()
    replace(path, document(2))
    seen.wait(2)
    thread.stop()
    thread.join(PATIENCE_SECONDS)
    assert thread.latest().generation == 2
    assert "no channel" in caplog.text


def test_a_thread_without_a_listener_publishes(path: Path) -> None:
    path.write_text(document(3))
    thread = SettingsThread(SettingsWatcher(path, None))
    thread.start()
    thread.stop()
    thread.join(PATIENCE_SECONDS)
    assert thread.latest().generation == 3


def test_a_change_that_settles_is_looked_at_sooner_than_the_next_poll(path: Path) -> None:
    events = Events()
    clock = iter(float(second) for second in range(1000))
    watcher = SettingsWatcher(path, None, settle_seconds=0.01)
    thread = SettingsThread(watcher, poll_seconds=0.05, on_event=events.append, clock=lambda: next(clock))
    thread.start()
    replace(path, document(1))
    events.wait(1)
    thread.stop()
    thread.join(PATIENCE_SECONDS)
