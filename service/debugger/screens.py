"""What lies over the panes for a moment: a text to read, a line to type, the question how to leave."""

from __future__ import annotations

from typing import ClassVar

from rich.console import RenderableType
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import ScrollableContainer, Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static


class Pane(ScrollableContainer):
    """A text that can be scrolled, and have the screen for itself."""

    ALLOW_MAXIMIZE = True


class Reader(ModalScreen[None]):
    """A text over the whole screen."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "dismiss", "close")]

    def __init__(self, title: str, shown: RenderableType) -> None:
        super().__init__()
        self._title, self._shown = title, shown

    def compose(self) -> ComposeResult:
        with Pane(classes="pane", id="reader") as pane:
            pane.border_title, pane.border_subtitle = self._title, "escape closes"
            yield Static(self._shown, classes="wide", markup=False)

    async def action_dismiss(self, result: None = None) -> None:
        self.dismiss(result)


class Line(ModalScreen[str | None]):
    """One line of text; None if the person thinks better of it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "cancel")]

    def __init__(self, title: str, text: str = "") -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title, box.border_subtitle = self._title, "enter: go on, escape: cancel"
            yield Input(self._text, select_on_focus=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def action_leave(self) -> None:
        self.dismiss(None)


class Leaving(ModalScreen[str]):
    """`submit`, `leave`, or `` to go on."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("o", "dismiss('submit')"),
        Binding("l,q", "dismiss('leave')"),
        Binding("escape", "dismiss('')"),
    ]

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = "Leave"
            yield Static(
                "o  official evaluation of the best attempt on fresh inputs; it ends the run\n"
                "l  leave now, without it; `ringsmith debug --resume` goes on\n"
                "escape  go on",
                markup=False,
            )

    async def action_dismiss(self, result: str | None = None) -> None:
        self.dismiss(result)
