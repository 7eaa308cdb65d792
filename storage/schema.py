"""The tables of a Graft database: a contract for people who query it with SQL.

studies        one row per launched space
trials         one row per trial; id = study_id * 10^9 + number, so that it needs no look-up
metrics        one row per number of a report, by (trial_id, step, name, variant, condition)
architectures  frozen spline non-linearities found by stage one
checkpoints    the files with the state of a running trial, the two newest of each
workers        each worker: when it was last seen, its lease, and how full its lanes were
sources        the files of a study's plug-ins from outside, which it runs without the disk
fingerprints   conditions of trials' numbers beside their configurations: code, torch, processor
changes        changes of a study's space after its launch, each with the space before it
claim_events   the claims about a study's arms: locked, edited, looked at, refused to change
test_results   metrics of trials on their test sets, sealed until their study is revealed
reveals        when the test results of a study were opened, and by whom
trial_notes    stars, tags and notes of trials, for those that have any
submissions    the queue of the service: the studies that it is to run, for whom, and why one waits
tokens         tokens of people who use the service over HTTP, with their roles

A change here needs a new file in storage/migrations/versions and the next VERSION, and a new column
stands last in its table, where a migration puts it: a new database is made from these tables, and a
test compares the two ways. Times are UTC and come from the database's own clock. A number that is
not finite is stored as NULL.
"""

from __future__ import annotations

from typing import Literal

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

from spaces.bounds import MOST_TRIALS

VERSION = "0019"
"""The schema that this code reads and writes; four digits that only grow."""

VERSION_TABLE = "graft_version"

StudyState = Literal["running", "stopped", "finished", "failed"]

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite's rowid alias must be spelled INTEGER.
_Identifier = BigInteger().with_variant(Integer, "sqlite")
_Time = DateTime(timezone=True)
_HAS_ERROR = text("error IS NOT NULL")

studies = Table(
    "studies",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("space", Text, nullable=False),
    Column("space_hash", Text, nullable=False),
    Column("objective", Text, nullable=False),
    Column("direction", Text, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("trials", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("stop_requested", Boolean(create_constraint=False), nullable=False),
    Column("version", Text, nullable=False),
    Column("created_at", _Time, nullable=False),
    Column("updated_at", _Time, nullable=False),
    Column("steps", BigInteger, nullable=False, server_default=text("0")),  # of ended trials
    Column("fence", BigInteger, nullable=False, server_default=text("0")),  # counts controllers
    Column("checkpoints", Text),  # where they go: a folder, a URL, or `none`
    Column("numerics", Integer, nullable=False, server_default=text("1")),  # version at its start
    Column("checkpoint_folder", Text),  # the study's own below that; NULL: by its name and space
    Column("note", Text, nullable=False, server_default=text("''")),
    Column("tags", JSON, nullable=False, server_default=text("'[]'")),  # sorted words
    Column("archived", Boolean(create_constraint=False), nullable=False, server_default=false()),
    Column("second_objective", Text),  # with its direction: `minimize model.width`
    Column("data", JSON(none_as_null=True)),  # file -> its versions, last in use; NULL: unknown
    CheckConstraint("direction IN ('minimize', 'maximize')", name="direction"),
    CheckConstraint("state IN ('running', 'stopped', 'finished', 'failed')", name="state"),
)

architectures = Table(
    "architectures",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("study_id", ForeignKey("studies.id"), nullable=False),
    Column("trial_id", _Identifier, nullable=False),  # no key: trials refer to architectures
    Column("task", Text, nullable=False),
    Column("component", Text, nullable=False),
    Column("low", Double, nullable=False),
    Column("high", Double, nullable=False),
    Column("knots", JSON, nullable=False),
    Column("created_at", _Time, nullable=False),
    CheckConstraint("component IN ('mlp', 'attention')", name="component"),
    UniqueConstraint("trial_id", "component"),
)

trials = Table(
    "trials",
    metadata,
    Column("id", _Identifier, primary_key=True, autoincrement=False),
    Column("study_id", ForeignKey("studies.id"), nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("group_number", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("scorer", Text),
    Column("seed", BigInteger, nullable=False),
    Column("steps", BigInteger, nullable=False),
    Column("objective", Double),
    Column("architecture_id", ForeignKey("architectures.id")),
    Column("worker", Text),
    Column("fence", BigInteger, nullable=False),  # counts its starts
    Column("error", Text),
    Column("created_at", _Time, nullable=False),
    Column("started_at", _Time),
    Column("finished_at", _Time),
    Column("params", JSON, nullable=False),
    Column("draws", JSON, nullable=False),
    Column("config", JSON, nullable=False),
    Column("parent", BigInteger),  # number of the trial whose state it took over, at a step
    Column("parent_step", BigInteger),
    Column("deaths", BigInteger, nullable=False, server_default=text("0")),  # `crashes`
    Column("step_kind", Text),  # `native AVX2`; several with commas if it moved between machines
    Column("fingerprint", Integer),  # number of a row of fingerprints; NULL before a report
    Column("second_objective", Double),  # of the objective's validation, as the constraints are
    Column("constraints", JSON(none_as_null=True)),  # excess over each bound; broken above 0
    Column("feasible", Boolean(create_constraint=False)),  # NULL: no constraints, or unknown
    Column("ended", BigInteger),  # counts the ends of trials of the study, whatever the clocks
    UniqueConstraint("study_id", "number"),
    CheckConstraint("state IN ('queued', 'running', 'finished', 'pruned', 'diverged', 'failed')", name="state"),
    CheckConstraint("objective IS NULL OR state IN ('finished', 'pruned')", name="objective"),
    Index(None, "study_id", "state"),
    # All that a ranking reads.
    Index(None, "study_id", "objective", "number", "second_objective", "feasible"),
    Index(None, "study_id", "finished_at", "started_at"),
    Index(None, "study_id", "ended"),
    Index("ix_trials_error", "study_id", "number", sqlite_where=_HAS_ERROR, postgresql_where=_HAS_ERROR),
)

metrics = Table(
    "metrics",
    metadata,
    Column("trial_id", ForeignKey("trials.id"), primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("variant", Text, primary_key=True),
    Column("condition", Text, primary_key=True),
    Column("value", Double),
    sqlite_with_rowid=False,
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("trial_id", ForeignKey("trials.id"), primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("fence", BigInteger, nullable=False),  # the trial's, when it was written
    Column("path", Text, nullable=False),
    Column("place", BigInteger, nullable=False),  # row of the trial in the file
    Column("sha256", Text, nullable=False),
    Column("past", JSON, nullable=False),  # what the study's history must know of the reports
    Column("known", JSON, nullable=False),  # what the controller must know
    Column("created_at", _Time, nullable=False),
)

workers = Table(
    "workers",
    metadata,
    Column("study_id", ForeignKey("studies.id"), primary_key=True),
    Column("id", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("fence", BigInteger, nullable=False),  # the study's: of the controller that it works for
    Column("heartbeat_at", _Time, nullable=False),
    Column("lease_until", _Time),
    Column("steps", BigInteger, nullable=False, server_default=text("0")),
    Column("room", BigInteger, nullable=False, server_default=text("0")),
    Column("log", Text, nullable=False, server_default=text("''")),  # path of its log file
)

sources = Table(
    "sources",
    metadata,
    Column("study_id", ForeignKey("studies.id"), primary_key=True),
    Column("bundle", Integer, primary_key=True),  # files of one number import one another
    Column("module", Text, primary_key=True),  # the dotted name by which they do
    Column("path", Text, nullable=False),  # where it was read
    Column("is_package", Boolean(create_constraint=False), nullable=False),
    Column("sha256", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("plugins", JSON, nullable=False),  # those that it defines: family, name, line, origin
    Column("successor", Integer),  # the bundle that took its place when a changed file was accepted
)

fingerprints = Table(
    "fingerprints",
    metadata,
    Column("study_id", ForeignKey("studies.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("previous", Integer),  # row of the earlier steps of trials that were resumed
    Column("numerics", Integer, nullable=False),
    Column("version", Text),  # of Graft; here and below NULL is unknown, of an older Graft
    Column("code", Text),  # SHA-256 of the files of Graft that compute, 16 digits
    Column("torch", Text),
    Column("processor", Text),
    Column("compiler", Text),  # of native steps; empty for others
    Column("step_kind", Text),
    Column("sources", JSON, nullable=False),  # plug-in that trials used -> SHA-256, 16 digits
    Column("created_at", _Time, nullable=False),
)

changes = Table(
    "changes",
    metadata,
    Column("study_id", ForeignKey("studies.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("created_at", _Time, nullable=False),
    Column("version", Text, nullable=False),  # of Graft
    Column("trials", BigInteger, nullable=False),  # how many had been started
    Column("differences", JSON, nullable=False),  # paths, each with its value before and after
    Column("space", Text, nullable=False),  # before the change
)

claim_events = Table(
    "claim_events",
    metadata,
    Column("study_id", ForeignKey("studies.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("created_at", _Time, nullable=False),
    Column("event", Text, nullable=False),
    Column("claims", JSON, nullable=False),  # those from then on, with arms, metric and rule
    Column("sha256", Text, nullable=False),  # of the claims as JSON with sorted keys and no spaces
    Column("results", BigInteger, nullable=False),  # trials of the study that had ended
    Column("version", Text, nullable=False),  # of Graft
    Column("command", Text, nullable=False),  # that showed results, or the refused change
    Column("request", Text),  # made by who looked, so that a second sending is recognised
    CheckConstraint("event IN ('locked', 'edited', 'looked', 'refused')", name="event"),
)

test_results = Table(
    "test_results",
    metadata,
    Column("study_id", ForeignKey("studies.id"), primary_key=True),
    Column("number", Integer, primary_key=True),  # of a trial
    Column("step", BigInteger, primary_key=True),
    Column("sealed", Text, nullable=False),  # its metrics on its test sets, until a reveal
)

reveals = Table(
    "reveals",
    metadata,
    Column("study_id", ForeignKey("studies.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("created_at", _Time, nullable=False),
    Column("person", Text, nullable=False),
    Column("version", Text, nullable=False),  # of Graft
    Column("request", Text, nullable=False),  # so that a second sending is recognised
)

trial_notes = Table(
    "trial_notes",
    metadata,
    Column("study_id", ForeignKey("studies.id"), primary_key=True),
    Column("number", BigInteger, primary_key=True),  # of a trial
    Column("starred", Boolean(create_constraint=False), nullable=False),
    Column("tags", Text, nullable=False),  # sorted words with spaces between them
    Column("note", Text, nullable=False),
)

submissions = Table(
    "submissions",
    metadata,
    Column("study_id", ForeignKey("studies.id"), primary_key=True, autoincrement=False),
    Column("request", Text, nullable=False),  # so that a second sending is recognised
    Column("owner", Text, nullable=False),
    Column("priority", Integer, nullable=False),  # a higher class has lanes before a lower one
    Column("weight", Double, nullable=False),  # its share among studies of its class
    Column("max_lanes", BigInteger),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),  # why it waits, or failed
    Column("lanes", BigInteger, nullable=False),  # that train its trials now
    Column("share", Double, nullable=False),  # lanes that it is due
    Column("submitted_at", _Time, nullable=False),
    Column("started_at", _Time),  # by the service, last
    Column("ended_at", _Time),
    CheckConstraint("state IN ('waiting', 'running', 'paused', 'cancelled', 'done', 'failed')", name="state"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),  # for people, and for the log
    Column("role", Text, nullable=False),  # each may do what the ones before it may
    Column("digest", Text, nullable=False, unique=True),  # SHA-256 of the token
    Column("created_at", _Time, nullable=False),
    Column("revoked_at", _Time),
    Column("expires_at", _Time),  # NULL: never
    CheckConstraint("role IN ('read', 'submit', 'admin')", name="role"),
)


_TABLES = metadata.tables.values()
KEYED_BY_STUDY = [table for table in _TABLES if "study_id" in table.primary_key.columns]
"""The tables whose primary key begins with the id of a study."""


def trial_id(study_id: int, number: int) -> int:
    """Return the primary key of a trial: study 3, number 17 -> 3000000017."""
    return study_id * MOST_TRIALS + number
