"""Those who ask the server: what they may change, and what the queue is asked for them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Annotated, Self

from fastapi import Depends, Request
from starlette.types import Scope

from graft.web.checking import Checker
from graft.web.models import Submission
from graft.web.security.access import LOCAL, Holder
from graft.web.security.guard import name_client
from graft.web.security.refusals import RefusalError
from graft.web.settings import Quotas, Settings
from graft.web.submissions import Submitted, make_request
from spaces.bounds import MOST_LANES
from spaces.errors import StudyError
from spaces.reading import catalogue
from storage import QueueEntry, StoreRequest, Terms, open_reader, request_queue
from storage.frames import Reader
from storage.queue import NEEDS_ADMIN
from storage.tokens import Role


@dataclass(frozen=True, kw_only=True)
class Caller:
    """A person or a program that asks, by a page, an address below `/api` or a tool."""

    settings: Settings
    checker: Checker
    holder: Holder
    client: str
    """The person, for whom one check is made at a time."""

    @classmethod
    def of(cls, scope: Scope) -> Self:
        """Return who makes a request over HTTP."""
        state, holder = scope["app"].state, scope["state"]["holder"]
        return cls(settings=state.settings, checker=state.checker, holder=holder, client=name_client(scope))

    @property
    def quotas(self) -> Quotas | None:
        """The most that a person may ask for; None for the role admin, which may ask for all."""
        return None if self.holder.requester is None else self.settings.quotas

    def read(self) -> Reader:
        """Open the database, which may work for so long on one answer."""
        return open_reader(self.settings.database, self.settings.answer_seconds)

    def require(self, role: Role) -> Self:
        """Return the caller; refused with 403 if its holder lacks the role."""
        holder = self.holder
        if not holder.may(role):
            raise RefusalError(403, f"the token {holder.name!r} has the role {holder.role}; this needs {role}")
        return self

    def check_owner(self, reader: Reader, study: str) -> QueueEntry | None:
        """Return a study's entry; 403 if it is another person's, unless an admin asks."""
        entry = find_entry(reader, study)
        if entry and entry.owner != self.holder.name and not self.holder.may("admin"):
            raise RefusalError(403, f"study {study} is {entry.owner or 'nobody'}'s; {NEEDS_ADMIN}")
        return entry

    def check_change(self, reader: Reader, study: str) -> None:
        """Refuse with 403 to change a study that the holder did not submit, unless as an admin."""
        if self.check_owner(reader, study) is None and not self.holder.may("admin"):
            raise RefusalError(403, f"study {study} was launched, not submitted: {NEEDS_ADMIN}")

    def submitted(self, space: str, study: str | None = None) -> Submitted:
        """Return a space as sent, or a packaged one by name, with what it may name and ask for."""
        text = catalogue.read_text(space) if space in catalogue.packaged_spaces() else space
        settings, quotas = self.settings, self.quotas
        return Submitted(text=text, name=study, plugins=settings.plugins, resources=settings.resources, quotas=quotas)

    def plan(self, asked: Submission) -> StoreRequest:
        """Return the request that queues a space, once checked; refused as `Checker.ask` does."""
        if asked.study:
            with self.read() as reader:
                self.check_owner(reader, asked.study)
        terms = self.check_terms(asked)
        space = self.submitted(asked.space, asked.study)
        request = self.checker.ask(make_request, (space,), self.client)
        return replace(StoreRequest.from_json(json.dumps(request)), terms=terms)

    def check_terms(self, asked: Submission) -> Terms:
        """Return the terms on which a study is run; raises QuotaError beyond a person's quotas."""
        quotas = self.quotas
        if quotas:
            quotas.check("priority", asked.priority)
            quotas.check("weight", asked.weight)
            quotas.check("lanes", asked.max_lanes or 1)
        owner = asked.owner if self.holder == LOCAL else self.holder.name
        max_lanes = asked.max_lanes or (int(min(quotas.lanes, MOST_LANES)) if quotas else None)
        return Terms(owner=owner, priority=asked.priority, weight=asked.weight, max_lanes=max_lanes)

    def send(self, asked: StoreRequest) -> QueueEntry | None:
        """Ask the queue for a change; return the entry as `request_queue` gives it."""
        with self.read() as reader:
            self.check_owner(reader, asked.study)
        most_open = int(self.settings.quotas.studies)
        asked = replace(asked, by=self.holder.requester, most_open=most_open)
        try:
            return request_queue(self.settings.database, asked)
        except StudyError as error:  # a service that refuses sends a line alone
            if str(error).endswith(NEEDS_ADMIN):
                raise RefusalError(403, str(error)) from None
            raise


def find_entry(reader: Reader, study: str) -> QueueEntry | None:
    """Return the entry of a study in the queue; None if it was never submitted."""
    return next((entry for entry in reader.queue() if entry.study == study), None)


def require_submit(request: Request) -> Caller:
    """Return who asks for a change; refused with 403 without the role for it."""
    return Caller.of(request.scope).require("submit")


Submitter = Annotated[Caller, Depends(require_submit)]
