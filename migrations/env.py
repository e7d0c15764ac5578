"""Runs migrations on the connection that service.storage.migrations hands over."""

from alembic import context

from service.ledger.log.adoption import adopt
from service.storage.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=connection.dialect.name == "sqlite",
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
    reached = context.get_context().get_current_heads()
    if reached == (context.get_head_revision(),):
        adopt(connection)
