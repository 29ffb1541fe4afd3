"""The processes that a test has started."""

from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Children, their children and so on, that are there now; oldest first, whatever their numbers: these begin anew
    after 32768, which a run of all tests uses up."""
    parents, started = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)], started[int(entry.name)] = int(after_name[1]), int(after_name[19])
    found, todo = [], [pid]
    while todo:
        parent = todo.pop()
        children = [child for child, its_parent in parents.items() if its_parent == parent]
        found += children
        todo += children
    return sorted(found, key=lambda child: (started[child], child))
