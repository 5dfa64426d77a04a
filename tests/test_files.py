"""Files are seen whole or not at all, and folders are found by the file that marks them."""

import os
import threading

import pytest

from rlpad.files import nearest_sibling, write_atomically


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def replace(source, target):
        raise OSError("disk on fire")

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="fire"):
        write_atomically(path, b"new")
    assert [child.name for child in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def litter(folder):
    return [child.name for child in folder.iterdir() if child.name.startswith(".")]


@pytest.mark.parametrize("hard_links", [True, False])
def test_a_file_that_is_there_is_left_alone(tmp_path, monkeypatch, hard_links):
    if not hard_links:

        def link(source, target):
            raise PermissionError("none on this file system")

        monkeypatch.setattr(os, "link", link)
    path = tmp_path / "file"
    write_atomically(path, b"first", replace=False)
    with pytest.raises(FileExistsError):
        write_atomically(path, b"second", replace=False)
    assert path.read_bytes() == b"first"
    assert litter(tmp_path) == []


def test_of_many_who_come_at_once_one_writes(tmp_path):
    gate, written = threading.Barrier(8), []

    def write(number):
        gate.wait(10)
        try:
            write_atomically(tmp_path / "file", b"%d" % number, replace=False)
        except FileExistsError:
            return
        written.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert [b"%d" % number for number in written] == [(tmp_path / "file").read_bytes()]
    assert litter(tmp_path) == []


def test_the_nearest_folder_with_a_marker(tmp_path):
    for name in ("cartpole", "cartpoles", "pong"):
        (tmp_path / name).mkdir()
    (tmp_path / "cartpole" / "run.json").touch()
    assert nearest_sibling(tmp_path / "cartpol", "run.json") == "; did you mean 'cartpole'?"
    assert nearest_sibling(tmp_path / "pang", "run.json") == ""
    assert nearest_sibling(tmp_path / "none" / "cartpol", "run.json") == ""
