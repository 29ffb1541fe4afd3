"""The debugger's screen: candidate, last result, attempts, and a key for each thing to do."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text
from textual.app import App, ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.css.query import NoMatches
from textual.widgets import DataTable, Static

from harness.errors import RingsmithError
from harness.wording import one_line
from service.debugger import views
from service.debugger.code import highlighted
from service.debugger.editor import edit
from service.debugger.help import HELP, KEYS, keys
from service.debugger.journal import Row
from service.debugger.screens import Leaving, Line, Pane, Reader
from service.debugger.session import Debugging

LOOK_S = 0.2
"""How often it is looked what has happened: in the run, in the file, on the clock."""


class Debugger(App[str]):
    """Returns `hangup` if a signal has ended it, else "". The run may go on: whoever called ends it."""

    TITLE = "ringsmith debug"
    CSS_PATH = "debugger.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-wide")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding("question_mark" if key == "?" else key, action) for key, _, action in KEYS),
        Binding("ctrl+q", "leave"),
        Binding("escape", "stop"),
        Binding("ctrl+c", "stop(True)", priority=True),
    ]

    def __init__(self, debugging: Debugging, *, dark: bool = True) -> None:
        super().__init__()
        self.debugging = debugging
        self.theme = "textual-dark" if dark else "textual-light"
        self._shown_version = -1
        self._shown_text: str | None = None
        self._shown_result = ""
        self._marked: int | None = None
        self._leaving = False

    def compose(self) -> ComposeResult:
        yield Static(id="where", markup=False)
        yield Static(id="doing", markup=False)
        with Container(id="panes"):
            with Pane(id="candidate", classes="pane"):
                yield Static(id="code", classes="wide", markup=False)
            with Pane(id="result", classes="pane"):
                yield Static(id="said", markup=False)
            yield DataTable[Text](id="attempts", classes="pane", cursor_type="row", zebra_stripes=False)
        yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for ended in (signal.SIGHUP, signal.SIGTERM):
            loop.add_signal_handler(ended, self.exit, "hangup")
        self.table.add_columns(*views.COLUMNS)
        self.table.border_title = "attempts"
        self.query_one("#candidate").focus()
        self.set_interval(LOOK_S, self.look)
        self.look()

    def on_resize(self) -> None:
        self.query_one("#keys", Static).update(keys(self.size.width))

    @property
    def table(self) -> DataTable[Text]:
        return self.query_one("#attempts", DataTable)

    @property
    def dark(self) -> bool:
        return self.current_theme.dark

    def look(self) -> None:
        """Show what is new."""
        with suppress(NoMatches):  # the screen is being taken down
            self._look()

    def _look(self) -> None:
        debugging, journal = self.debugging, self.debugging.journal
        said = debugging.poll()
        text, version = debugging.file.read(), journal.version
        if said is not None:
            self._came_to_its_end(said)
        if said is not None or version != self._shown_version:
            self._show_run()
        if text != self._shown_text or version != self._shown_version:
            self._show_candidate(text)
        self._shown_version, self._shown_text = version, text
        doing = self.query_one("#doing", Static)
        doing.set_class(debugging.doing is not None, "busy")
        doing.update(views.doing(debugging))

    def _came_to_its_end(self, said: str) -> None:
        if said and said.split("\n\n", maxsplit=1)[0] not in self.debugging.journal.result.text:
            self.notify(one_line(said, 400), severity="warning", timeout=8, markup=False)
        if self.debugging.agent.ended is not None and self._leaving:
            self.exit("")

    def _show_run(self) -> None:
        debugging, journal = self.debugging, self.debugging.journal
        self.query_one("#where", Static).update(views.where(debugging))
        pane = self.query_one("#result")
        shown = journal.result
        if not shown.text.startswith(self._shown_result):
            pane.scroll_home(animate=False)  # it is another one, and not the same with more
        pane.border_title, self._shown_result = one_line(shown.title), shown.text
        self.query_one("#said", Static).update(views.result(shown, journal.writing))
        if journal.writing:
            pane.scroll_end(animate=False)
        self._show_attempts()

    def _show_attempts(self) -> None:
        journal, table = self.debugging.journal, self.table
        new, at = len(journal.rows) > table.row_count, table.cursor_row
        table.clear()
        for row in journal.rows:
            table.add_row(*views.cells(row, journal.best, journal.current, self._marked))
        if journal.rows:
            table.move_cursor(row=len(journal.rows) - 1 if new else at, animate=False)
        table.border_title = "attempts: * best, > current, • marked" if journal.rows else "attempts: none yet"

    def _show_candidate(self, text: str) -> None:
        journal = self.debugging.journal
        current = self.debugging.hash(text)
        marked = journal.result.lines if journal.result.candidate == current else frozenset[int]()
        pane = self.query_one("#candidate")
        state = "edited" if current != journal.current else f"attempt {journal.rows[-1].number}"
        pane.border_title = f"{one_line(self.debugging.file.path.name, 40)}: {self.debugging.file.fault or state}"
        self.query_one("#code", Static).update(highlighted(text, self.dark, marked))
        if marked and self._shown_version != journal.version:
            pane.scroll_to(y=max(0, min(marked) - 4), animate=False)

    def action_tool(self, name: str) -> None:
        self._try(lambda: self.debugging.call(name))

    def action_check(self) -> None:
        self._try(lambda: self.debugging.call("run_benchmark", timing=False))

    def action_with(self, name: str, argument: str, question: str) -> None:
        self._typed(question, lambda text: self.debugging.call(name, **{argument: text}))

    def action_task(self) -> None:
        self.push_screen(Reader("the task", views.task(self.debugging.agent.messages)))

    def action_ask(self) -> None:
        self._try(self.debugging.ask)

    def action_hint(self) -> None:
        if self.debugging.model is None:
            self._try(self.debugging.ask)  # says that there is no model
        else:
            self._typed("What to tell the model before its step", self.debugging.ask)

    def action_branch(self) -> None:
        if (row := self._row()) is not None:
            self._try(lambda: self.debugging.branch(row.candidate))

    def action_view(self) -> None:
        if (row := self._row()) is not None:
            self._read(
                f"attempt {row.number}", lambda: views.attempt(row, self.debugging.source(row.candidate), self.dark)
            )

    def on_data_table_row_selected(self) -> None:
        self.action_view()

    def action_mark(self) -> None:
        if (row := self._row()) is not None:
            self._marked = None if self._marked == row.number else row.number
            self._show_attempts()

    def action_diff(self) -> None:
        """From the marked attempt to the chosen one, else from the chosen one to the file."""
        if (row := self._row()) is None:
            return
        other = self.debugging.journal.row(self._marked) if self._marked not in (None, row.number) else None

        def shown() -> RenderableType:
            source = self.debugging.source(row.candidate)
            if other is not None:
                return views.difference(
                    self.debugging.source(other.candidate), source, (other.said(), row.said()), self.dark
                )
            return views.difference(source, self.debugging.file.read(), (row.said(), "the file now"), self.dark)

        self._read("diff", shown)

    def action_save(self) -> None:
        assert self.debugging.journal.state is not None  # the run has begun
        problem = self.debugging.journal.state.config.problem
        self.push_screen(Line("Save the candidate as", f"p{problem:02d}_candidate.py"), self._saved)

    def _saved(self, path: str | None, again: bool = False) -> None:
        if not path or not path.strip():
            return
        target = Path(path.strip())
        if target.expanduser().exists() and not again:
            question = Line(f"{target} exists: enter replaces it", path)
            self.push_screen(question, lambda answer: self._saved(answer, again=answer == path))
            return
        self._try(lambda: self.debugging.save(target, self.debugging.file.read()))
        if target.expanduser().is_file():
            self.notify(f"saved as {target}", markup=False)

    def action_edit(self) -> None:
        path = self.debugging.file.path
        try:
            with self.suspend():
                fault = edit(path)
        except SuspendNotSupported:
            fault = f"this terminal cannot be lent to an editor: edit {path} elsewhere"
        if fault:
            self.notify(fault, severity="error", markup=False)
        self.refresh(layout=True)
        self.look()

    def action_zoom(self) -> None:
        if self.screen.maximized is not None:
            self.screen.minimize()
        elif self.focused is not None:
            self.screen.maximize(self.focused, container=False)

    def action_theme(self) -> None:
        self.theme = "textual-light" if self.dark else "textual-dark"
        self._shown_text = None

    def action_help(self) -> None:
        self.push_screen(Reader("help", Text(HELP.format(file=self.debugging.file.path))))

    def action_stop(self, ctrl_c: bool = False) -> None:
        """Escape and Ctrl-C: close what lies over the panes, else break off what is under way; pressed again, leave.
        Ctrl-C asks for that too where there is nothing to break off."""
        doing = self.debugging.doing
        if ctrl_c and isinstance(self.screen, Leaving):
            self.exit("")
        elif ctrl_c and len(self.screen_stack) > 1:
            self.pop_screen()
        elif doing is not None and doing.stopping:
            self.exit("")
        elif doing is not None:
            self._try(self.debugging.stop)
            self.notify(f"breaking off: {doing.label}. Once more leaves.", markup=False)
        elif ctrl_c:
            self.action_leave()

    def action_leave(self) -> None:
        if self.debugging.agent.ended is not None:
            self.exit("")
        elif len(self.screen_stack) == 1:
            self.push_screen(Leaving(), self._left)

    def _left(self, how: str | None) -> None:
        if how == "leave":
            self.exit("")
        elif how == "submit":
            self._leaving = self._try(self.debugging.submit)

    def _row(self) -> Row | None:
        """The attempt under the table's cursor."""
        at, rows = self.table.cursor_row, self.debugging.journal.rows
        if 0 <= at < len(rows):
            return rows[at]
        self.notify("no attempt yet: c, r or p records the candidate as one", markup=False)
        return None

    def _read(self, title: str, shown: Callable[[], RenderableType]) -> None:
        def read() -> None:
            self.push_screen(Reader(title, shown()))

        self._try(read)

    def _typed(self, question: str, act: Callable[[str], object]) -> None:
        """Act on what is typed, if anything is."""

        def answered(text: str | None) -> None:
            if text is not None and (said := text.strip()):
                self._try(lambda: act(said))

        self.push_screen(Line(question), answered)

    def _try(self, what: Callable[[], object]) -> bool:
        """Whether it could be done; if not it is said why."""
        try:
            what()
        except RingsmithError as error:
            self.notify(one_line(str(error), 400), severity="warning", markup=False)
            return False
        finally:
            self.look()
        return True
