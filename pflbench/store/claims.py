"""Claims on runs in the database itself, where machines share it: a row with a heartbeat, so that one of them makes a run.

Time is the server's alone. A claim whose heart has stopped for EXPIRY seconds is anybody's: its process is dead, or cut off.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, Engine, delete, func, or_, select, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import SQLAlchemyError

from pflbench.errors import Occupied, UserError
from pflbench.store.database import reading, writing
from pflbench.store.failures import patiently
from pflbench.store.schema import ClaimRow

BEAT, EXPIRY = 15.0, 60.0  # seconds


class Claim:
    """That this process is at the runs of a key."""

    def __init__(self, engine: Engine, key: str) -> None:
        self._engine, self._key = engine, key
        self.owner = f"{platform.node()[:80]}, process {os.getpid()}, {uuid4().hex[:12]}"
        self._mine = (ClaimRow.key == key, ClaimRow.owner == self.owner)

    def take(self) -> None:
        """Raises Occupied where another has it and is alive."""
        new = {"owner": self.owner, "beat_at": func.now()}
        free = or_(ClaimRow.owner == self.owner, ~_alive())  # its own, where it did not hear that it has it
        with writing(self._engine) as c:
            c.execute(postgresql.insert(ClaimRow).values(key=self._key, **new).on_conflict_do_nothing())
            # Of several that find the same claim dead, the others pass over it while one takes it.
            found = select(ClaimRow.key).where(ClaimRow.key == self._key, free).with_for_update(skip_locked=True)
            if c.execute(found).first() is not None:
                c.execute(update(ClaimRow).where(ClaimRow.key == self._key).values(new))
                return
            other = c.scalar(select(ClaimRow.owner).where(ClaimRow.key == self._key))
        who = f": {other.rpartition(', ')[0]}" if other else ""
        raise Occupied(
            f"Another process is at this run already{who}.",
            f"Wait for it, or stop it first. One that was killed has its claim for another {EXPIRY:.0f} seconds at most.",
        )

    def require(self, connection: Connection) -> None:
        """In a transaction that writes to the run: nobody takes the claim over before it ends. Raises Occupied where one did."""
        held = select(ClaimRow.key).where(*self._mine).with_for_update(read=True, key_share=True)
        if connection.execute(held).first() is None:
            raise Occupied(
                "Another process has taken this run over: this one was cut off from the database for too long.",
                "It goes on there; here nothing more is written.",
            )

    def beat(self) -> None:
        """Says that this process is alive. A claim that another has taken over stays theirs."""
        with writing(self._engine) as c:
            c.execute(update(ClaimRow).where(*self._mine).values(beat_at=func.now()))

    def release(self) -> None:
        with writing(self._engine) as c:
            c.execute(delete(ClaimRow).where(*self._mine))


@contextmanager
def claimed(engine: Engine, key: str) -> Iterator[Claim]:
    """Keeps other processes from the runs of a key, for as long as this one lives. Raises Occupied."""
    claim, over = Claim(engine, key), threading.Event()
    patiently(claim.take)

    def beat() -> None:
        while not over.wait(BEAT):
            with suppress(UserError, SQLAlchemyError):  # the server may be back at the next beat
                claim.beat()

    heart = threading.Thread(target=beat, name=f"claim on {key}", daemon=True)
    heart.start()
    try:
        yield claim
    finally:
        over.set()
        heart.join(timeout=2)  # it may be waiting for a server that does not answer
        with suppress(UserError, SQLAlchemyError):  # without it the claim ends by itself
            claim.release()


def held(engine: Engine) -> set[str]:
    """The keys at whose runs a process is."""
    with reading(engine) as c:
        return set(c.scalars(select(ClaimRow.key).where(_alive())))


def _alive() -> ColumnElement[bool]:
    return ClaimRow.beat_at > func.now() - timedelta(seconds=EXPIRY)
