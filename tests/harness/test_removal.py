"""Folders that untrusted processes have left are removed, whatever they look like."""

import os

from harness.removal import remove


def test_folders_in_folders_without_end(tmp_path):
    folder = tmp_path / "left"
    folder.mkdir()
    inner = os.open(folder, os.O_RDONLY)
    for _ in range(5000):
        os.mkdir("folder", dir_fd=inner)
        below = os.open("folder", os.O_RDONLY, dir_fd=inner)
        os.close(inner)
        inner = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
    os.close(inner)
    remove(folder)
    assert not folder.exists()


def test_links_pipes_and_closed_folders(tmp_path):
    outside = tmp_path / "outside"
    (outside / "kept").mkdir(parents=True)
    folder = tmp_path / "left"
    (folder / "closed" / "inner").mkdir(parents=True)
    (folder / "closed").chmod(0)
    (folder / "link").symlink_to(outside)
    (folder / "dangling").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")
    (folder / "file").write_text("x")
    remove(folder)
    assert not folder.exists()
    assert (outside / "kept").is_dir()


def test_what_is_not_there_or_no_folder_is_left(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("nothing", "file", "link"):
        remove(tmp_path / name)
    assert (tmp_path / "file").exists()
    assert (tmp_path / "link").is_symlink()
