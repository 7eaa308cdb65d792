"""Run by Alembic: applies missing versions, and their record, in the caller's transaction."""

from alembic import context

from storage.schema import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=VERSION_TABLE,
    transactional_ddl=True,  # true of our SQLite connections too: they send BEGIN themselves
)
context.run_migrations()
