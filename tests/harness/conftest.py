import pytest
import torch

from harness import kit, platforms
from harness.progress import Progress, ProgressBoard


@pytest.fixture
def bind_kit(tmp_path, monkeypatch):
    """`bind_kit(source)`: kit as the harness binds it in a build process on cpu, for a candidate of that text."""
    monkeypatch.setattr(kit, "_state", None)  # and so it is again afterwards
    board = ProgressBoard(tmp_path / "progress", 1, create=True)

    def bind(source: str) -> kit._State:
        state = kit._State(
            platform=platforms.get("cpu"),
            rank=0,
            world_size=1,
            device=torch.device("cpu"),
            progress=Progress(board, 0),
            source=source,
            built=[],
        )
        kit.bind(state)
        return state

    yield bind
    monkeypatch.setattr(kit, "_state", None)
    board.close()
