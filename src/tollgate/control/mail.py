"""Mail by SMTP, where it is set. Sending never holds up a request; what fails is logged, without the text.

The standard library's client in a thread: a handful of mails a day do not justify an asynchronous one.
"""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from email.message import EmailMessage
from email.utils import formatdate, make_msgid

from tollgate import log
from tollgate.config import Mail

SECONDS = 15.0
MOST_WAITING = 200
_log = log.get("mail")


class Mailer:
    """Sends mail in the background."""

    def __init__(self, settings: Mail) -> None:
        self._settings = settings
        self._tasks: set[asyncio.Task[None]] = set()
        self._one = asyncio.Semaphore(1)

    @property
    def enabled(self) -> bool:
        """Whether mail can be sent at all."""
        return bool(self._settings.host)

    def post(self, to: str, subject: str, text: str) -> bool:
        """Send a mail as soon as may be; False where that cannot be."""
        if not self.enabled:
            return False
        if len(self._tasks) >= MOST_WAITING:
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
        """Wait for what is on its way, but not for long."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _deliver(self, message: EmailMessage) -> None:
        async with self._one:
            try:
                await asyncio.to_thread(self._send, message)
            # A ValueError is what the library makes of a login or an address that it cannot write down.
            except (OSError, ValueError, smtplib.SMTPException) as error:
                _log.error("a mail could not be sent", subject=message["Subject"], error=type(error).__name__)

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
