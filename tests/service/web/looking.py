"""What a person does in the browser, and sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from selenium.common.exceptions import ElementClickInterceptedException as Intercepted
from selenium.common.exceptions import ElementNotInteractableException as NotInteractable
from selenium.common.exceptions import StaleElementReferenceException as Stale
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests import browser as browsing

WAIT_S = 30.0
"""Longest wait for anything: the machine may be busy."""


class Looking:
    def __init__(self, driver: Chrome, url: str) -> None:
        self.driver, self.url = driver, url

    def begin(self, token: str = "") -> None:
        """Forget what was, and come in with a token."""
        self.driver.get(f"{self.url}/login")
        self.driver.delete_all_cookies()
        if token:
            cookie = {"name": "ringsmith_token", "value": token, "sameSite": "Strict", "httpOnly": True}
            self.driver.add_cookie(cookie)
        browsing.hosts(self.driver), browsing.complaints(self.driver)

    def open(self, path: str) -> None:
        self.driver.get(f"{self.url}{path}")

    def until(self, holds: Callable[[], Any]) -> Any:
        """What it answers once that is something. What a page replaces meanwhile is looked for again."""
        passing = (Stale, NotInteractable, Intercepted)
        wait = WebDriverWait(self.driver, WAIT_S, 0.1, ignored_exceptions=list(passing))
        return wait.until(lambda _: holds())

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def see(self, text: str, css: str = "body") -> WebElement:
        """Wait until a text is shown there."""
        return self.until(lambda: self._find(css, "said.includes(wanted)", text))

    def texts(self, css: str) -> list[str]:
        """Of everything that is shown there."""
        script = "return [...document.querySelectorAll(arguments[0])].filter(e => e.offsetParent).map(e => e.innerText)"
        return [text.strip() for text in self.driver.execute_script(script, css)]

    def links(self) -> list[str]:
        """First cells of the list."""
        return self.until(lambda: self.texts(".row-link"))

    def click(self, text: str, css: str) -> None:
        """What is shown there and begins with the text."""
        self._click(css, "said.startsWith(wanted)", text)

    def press(self, name: str) -> None:
        """A button or a tab by its words."""
        self._click("button, [role=tab]", "said === wanted", name)

    def field(self, label: str) -> WebElement:
        return self.until(lambda: next(iter(self.all(f"input[aria-label='{label}']")), None))

    def choose(self, label: str, option: str) -> None:
        """In a list that opens."""
        self.field(label).click()
        self.click(option, "[role=option]")

    def keys(self, *keys: str) -> None:
        chain = ActionChains(self.driver)
        for key in keys:
            chain.send_keys(key)
        chain.perform()

    def rewrite(self, text: str) -> None:
        """The text of the editor, as if it were pasted: what is typed is indented by the editor itself."""
        editor = self.until(lambda: self.all(".cm-content[contenteditable=true]"))[0]
        editor.send_keys(Keys.CONTROL, "a", Keys.NULL)
        self.driver.execute_script("document.execCommand('insertText', false, arguments[0])", text)

    def unfold(self, css: str) -> None:
        """Everything that is folded there, wherever on the page it is."""
        for fold in self.until(lambda: self.all(f"{css} .q-expansion-item .q-item")):
            self.driver.execute_script("arguments[0].click()", fold)

    def _find(self, css: str, rule: str, wanted: str) -> WebElement | None:
        """In one request: a list has hundreds of elements."""
        script = f"""const [css, wanted] = arguments;
            return [...document.querySelectorAll(css)].find(e => {{
              const said = e.innerText.trim(); return (e.offsetParent || e === document.body) && {rule};
            }}) || null;"""
        return self.driver.execute_script(script, css, wanted)

    def _click(self, css: str, rule: str, wanted: str) -> None:
        def clicked() -> bool:
            found = self._find(css, rule, wanted)
            if found is not None:
                found.click()
            return found is not None

        self.until(clicked)

    def focused(self) -> WebElement:
        return self.driver.switch_to.active_element
