"""Run the migrations on the connection that `gateway.store.migrate` hands over."""

from __future__ import annotations

from alembic import context

from gateway.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
