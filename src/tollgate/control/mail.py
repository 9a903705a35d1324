"""Mail by SMTP, if configured. Sending never delays a request; failures are logged, without the text.

The standard library's client in a thread: a handful of mails a day do not justify an asynchronous one.
"""

from __future__ import annotations

import asyncio
import smtplib
import ssl
import threading
from contextlib import suppress
from email.message import EmailMessage
from email.utils import formatdate, make_msgid

from tollgate import log
from tollgate.settings.model import MailSettings

SECONDS = 10.0
# For a whole mail: a server could answer each command just in time, for ever.
MAIL_SECONDS = 30.0
CLOSE_SECONDS = 3.0
MAX_WAITING = 200
_log = log.get("mail")


class Mailer:
    """Sends mail in the background."""

    def __init__(self, settings: MailSettings) -> None:
        self._settings = settings
        self._tasks: set[asyncio.Task[None]] = set()
        self._one = asyncio.Semaphore(1)

    @property
    def enabled(self) -> bool:
        return bool(self._settings.host)

    def post(self, to: str, subject: str, text: str) -> bool:
        """Queue a mail; False if it was dropped."""
        if not self.enabled:
            return False
        if len(self._tasks) >= MAX_WAITING:
            _log.error("a mail was dropped: too many wait for the server", subject=subject)
            return False
        message = EmailMessage()
        message["From"], message["To"], message["Subject"] = self._settings.sender, to, subject
        message["Date"], message["Message-ID"] = formatdate(), make_msgid(domain="tollgate")
        message.set_content(text)
        task = asyncio.get_running_loop().create_task(self._deliver(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def close(self) -> None:
        """Wait a short time for mails that are being sent."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
            if late:
                _log.error("mails were not sent before shutdown", count=len(late))

    async def _deliver(self, message: EmailMessage) -> None:
        async with self._one:
            try:
                async with asyncio.timeout(MAIL_SECONDS):
                    await self._in_thread(message)
            # The library raises ValueError for a login or an address that it cannot encode.
            except (OSError, ValueError, smtplib.SMTPException) as error:
                _log.error("a mail could not be sent", subject=message["Subject"], error=type(error).__name__)

    async def _in_thread(self, message: EmailMessage) -> None:
        """Send in a thread that is not joined at exit: a silent server must not delay the shutdown."""
        loop = asyncio.get_running_loop()
        sent: asyncio.Future[None] = loop.create_future()

        def settle(error: Exception | None) -> None:
            if not sent.done():
                sent.set_exception(error) if error else sent.set_result(None)

        def work() -> None:
            error: Exception | None = None
            try:
                self._send(message)
            except Exception as failure:  # noqa: BLE001 - handed over
                error = failure
            # The loop may have been closed in the meantime.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, error)

        threading.Thread(target=work, name="mail", daemon=True).start()
        await sent

    def _send(self, message: EmailMessage) -> None:
        settings = self._settings
        tls = ssl.create_default_context()
        client = (
            smtplib.SMTP_SSL(settings.host, settings.port, timeout=SECONDS, context=tls)
            if settings.security == "tls"
            else smtplib.SMTP(settings.host, settings.port, timeout=SECONDS)
        )
        with client:
            if settings.security == "starttls":
                client.starttls(context=tls)
            if settings.username:
                client.login(settings.username, settings.password)
            client.send_message(message)
