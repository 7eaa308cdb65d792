"""Run by Alembic: applies the missing versions, and their record, inside the caller's one transaction."""

from alembic import context

from storage.schema import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=VERSION_TABLE,
    transactional_ddl=True,  # true of our SQLite connections too: they send BEGIN themselves
)
context.run_migrations()
