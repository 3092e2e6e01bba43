"""All tables. Times are Unix milliseconds, UTC; the migrations beside this file make exactly this."""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_Id = sa.String(40)
_Ms = sa.BigInteger
_Reason = sa.String(64).with_variant(sa.String(255), "postgresql")
"""A caller's words may be longer than 64; SQLite enforces no length, and widening would mean to rebuild its table."""
_Sequence = sa.BigInteger().with_variant(sa.Integer, "sqlite")

items = sa.Table(
    "items",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("tenant", sa.String(64), nullable=False),
    sa.Column("external_id", sa.String(255)),
    sa.Column("mode", sa.String(16), nullable=False),
    sa.Column("profile", sa.String(64), nullable=False),
    sa.Column("profile_version", sa.String(32), nullable=False),
    sa.Column("ruleset", sa.String(32), nullable=False),
    sa.Column("status", sa.String(24), nullable=False),
    sa.Column("reason", _Reason),
    sa.Column("route", sa.String(24)),
    sa.Column("attempt", sa.Integer, nullable=False, server_default="1"),
    sa.Column("epoch", sa.Integer, nullable=False, server_default="0"),
    sa.Column("claims", sa.Integer, nullable=False, server_default="0"),
    sa.Column("lost_claims", sa.Integer, nullable=False, server_default="0"),
    sa.Column("fence", sa.Integer, nullable=False, server_default="0"),
    sa.Column("lease_owner", sa.String(80)),
    sa.Column("lease_expires_ms", _Ms),
    sa.Column("available_ms", _Ms, nullable=False),
    sa.Column("hinted_ms", _Ms),
    sa.Column("version", sa.Integer, nullable=False, server_default="1"),
    sa.Column("submission", sa.JSON, nullable=False),
    sa.Column("notes", sa.JSON, nullable=False),
    sa.Column("decision", sa.JSON),
    sa.Column("result", sa.JSON),
    sa.Column("failure", sa.JSON),
    sa.Column("usage", sa.JSON, nullable=False),
    sa.Column("upload_bytes", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("content_key", sa.String(64), nullable=False),
    sa.Column("duplicate_of", _Id),
    sa.Column("escalation_id", _Id),
    sa.Column("created_ms", _Ms, nullable=False),
    sa.Column("updated_ms", _Ms, nullable=False),
    sa.Column("cancel_requested_ms", _Ms),
    sa.Column("expires_ms", _Ms),
    sa.Column("supersedes", _Id),
    sa.Column("superseded_by", _Id),
    sa.Column("purge_asked_ms", _Ms),
    sa.Column("purged_ms", _Ms),
    sa.Index("ix_items_tenant_created", "tenant", "created_ms", "id"),
    sa.Index("ix_items_tenant_external_id", "tenant", "external_id"),
    sa.Index("ix_items_tenant_content_key", "tenant", "content_key"),
    sa.Index(
        "ix_items_waiting",
        "available_ms",
        "id",
        sqlite_where=sa.text("status = 'queued'"),
        postgresql_where=sa.text("status = 'queued'"),
    ),
    sa.Index(
        "ix_items_hinted",
        "hinted_ms",
        sqlite_where=sa.text("status = 'queued'"),
        postgresql_where=sa.text("status = 'queued'"),
    ),
    sa.Index(
        "ix_items_cancelling",
        "cancel_requested_ms",
        sqlite_where=sa.text("status = 'cancelling'"),
        postgresql_where=sa.text("status = 'cancelling'"),
    ),
    sa.Index(
        "ix_items_leased",
        "lease_expires_ms",
        sqlite_where=sa.text("lease_expires_ms IS NOT NULL"),
        postgresql_where=sa.text("lease_expires_ms IS NOT NULL"),
    ),
    sa.Index(
        "ix_items_expiring",
        "expires_ms",
        sqlite_where=sa.text("purged_ms IS NULL"),
        postgresql_where=sa.text("purged_ms IS NULL"),
    ),
    sa.Index(
        "ix_items_purging",
        "purge_asked_ms",
        sqlite_where=sa.text("purge_asked_ms IS NOT NULL AND purged_ms IS NULL"),
        postgresql_where=sa.text("purge_asked_ms IS NOT NULL AND purged_ms IS NULL"),
    ),
    sa.Index(
        "ix_items_halted",
        "updated_ms",
        sqlite_where=sa.text("status = 'halted'"),
        postgresql_where=sa.text("status = 'halted'"),
    ),
)

files = sa.Table(
    "files",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("item_id", _Id, sa.ForeignKey("items.id", ondelete="CASCADE"), nullable=False),
    sa.Column("tenant", sa.String(64), nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("part", sa.String(64), nullable=False),
    sa.Column("role", sa.String(64)),
    sa.Column("file_name", sa.String(255)),
    sa.Column("declared_type", sa.String(127)),
    sa.Column("sha256", sa.String(64), nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("media_type", sa.String(127), nullable=False),
    sa.Column("verdict", sa.String(24)),
    sa.Column("screening", sa.JSON),
    sa.Column("overridden", sa.JSON),
    sa.Index("ix_files_item", "item_id", "position"),
    sa.Index("ix_files_content", "tenant", "sha256"),
)

history = sa.Table(
    "history",
    metadata,
    sa.Column("id", _Sequence, primary_key=True, autoincrement=True),
    sa.Column("item_id", _Id, sa.ForeignKey("items.id", ondelete="CASCADE"), nullable=False),
    sa.Column("at_ms", _Ms, nullable=False),
    sa.Column("from_status", sa.String(24)),
    sa.Column("to_status", sa.String(24), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("fence", sa.Integer, nullable=False),
    sa.Column("actor", sa.String(80), nullable=False),
    sa.Column("reason", sa.String(255)),
    sa.Index("ix_history_item", "item_id", "id"),
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("seq", _Sequence, primary_key=True, autoincrement=True),
    sa.Column("id", _Id, nullable=False, unique=True),
    sa.Column("tenant", sa.String(64), nullable=False),
    sa.Column("type", sa.String(48), nullable=False),
    sa.Column("resource", _Id, nullable=False),
    sa.Column("resource_version", sa.Integer, nullable=False),
    sa.Column("at_ms", _Ms, nullable=False),
    sa.Column("data", sa.JSON, nullable=False),
    sa.Index("ix_events_tenant_seq", "tenant", "seq"),
    sa.Index("ix_events_resource", "resource", "seq"),
    sqlite_autoincrement=True,
)

idempotency_keys = sa.Table(
    "idempotency_keys",
    metadata,
    sa.Column("tenant", sa.String(64), primary_key=True),
    sa.Column("scope", sa.String(80), primary_key=True),
    sa.Column("key", sa.String(255), primary_key=True),
    sa.Column("meta_fingerprint", sa.String(64), nullable=False),
    sa.Column("fingerprint", sa.String(64), nullable=False),
    sa.Column("item_id", _Id, sa.ForeignKey("items.id", ondelete="CASCADE"), nullable=False),
    sa.Column("created_ms", _Ms, nullable=False),
    sa.Index("ix_idempotency_keys_created", "created_ms"),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("tenant", sa.String(64), nullable=False),
    sa.Column("name", sa.String(120)),
    sa.Column("secret_hash", sa.String(64), nullable=False, unique=True),
    sa.Column("hint", sa.String(16), nullable=False),
    sa.Column("scopes", sa.JSON, nullable=False),
    sa.Column("created_ms", _Ms, nullable=False),
    sa.Column("last_used_ms", _Ms),
    sa.Column("revoked_ms", _Ms),
    sa.Column("expires_ms", _Ms),
    sa.Column("previous_hash", sa.String(64)),
    sa.Column("previous_until_ms", _Ms),
    sa.Index("ix_api_keys_previous_hash", "previous_hash"),
)

people = sa.Table(
    "people",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("tenant", sa.String(64), nullable=False),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("login", sa.String(128), nullable=False, unique=True),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("password_hash", sa.String(255), nullable=False),
    sa.Column("version", sa.Integer, nullable=False, server_default="1"),
    sa.Column("created_ms", _Ms, nullable=False),
    sa.Column("updated_ms", _Ms, nullable=False),
    sa.Column("last_login_ms", _Ms),
    sa.Column("disabled_ms", _Ms),
    sa.Index("ix_people_tenant", "tenant", "created_ms", "id"),
)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("token_hash", sa.String(64), primary_key=True),
    sa.Column("person_id", _Id, sa.ForeignKey("people.id", ondelete="CASCADE"), nullable=False),
    sa.Column("created_ms", _Ms, nullable=False),
    sa.Column("seen_ms", _Ms, nullable=False),
    sa.Column("expires_ms", _Ms, nullable=False),
    sa.Column("ended_ms", _Ms),
    sa.Column("ended_reason", sa.String(24)),
    sa.Index("ix_sessions_person", "person_id"),
    sa.Index("ix_sessions_expires", "expires_ms"),
)

login_attempts = sa.Table(
    "login_attempts",
    metadata,
    sa.Column("key", sa.String(80), primary_key=True),
    sa.Column("failures", sa.Integer, nullable=False),
    sa.Column("since_ms", _Ms, nullable=False),
)

stream_tokens = sa.Table(
    "stream_tokens",
    metadata,
    sa.Column("token_hash", sa.String(64), primary_key=True),
    sa.Column("tenant", sa.String(64), nullable=False),
    sa.Column("actor", sa.String(80), nullable=False),
    sa.Column("scopes", sa.JSON, nullable=False),
    sa.Column("credential", sa.String(80)),
    sa.Column("expires_ms", _Ms, nullable=False),
    sa.Index("ix_stream_tokens_expires", "expires_ms"),
)

service_secrets = sa.Table(
    "service_secrets",
    metadata,
    sa.Column("name", sa.String(32), primary_key=True),
    sa.Column("value", sa.String(128), nullable=False),
)

steps = sa.Table(
    "steps",
    metadata,
    sa.Column("item_id", _Id, sa.ForeignKey("items.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("fence", sa.Integer, nullable=False),
    sa.Column("intent", sa.JSON, nullable=False),
    sa.Column("intent_ms", _Ms, nullable=False),
    sa.Column("executions", sa.Integer, nullable=False, server_default="1"),
    sa.Column("outcome", sa.JSON),
    sa.Column("outcome_ms", _Ms),
)

escalations = sa.Table(
    "escalations",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("tenant", sa.String(64), nullable=False),
    sa.Column("item_id", _Id, sa.ForeignKey("items.id", ondelete="CASCADE")),
    sa.Column("run_id", _Id, sa.ForeignKey("guard_runs.id", ondelete="CASCADE")),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("profile", sa.String(64), nullable=False),
    sa.Column("reason", sa.String(64), nullable=False),
    sa.Column("tool", sa.String(128)),
    sa.Column("group_key", sa.String(64), nullable=False),
    sa.Column("status", sa.String(24), nullable=False),
    sa.Column("packet", sa.JSON, nullable=False),
    sa.Column("occurrence_count", sa.Integer, nullable=False, server_default="1"),
    sa.Column("came_back_after", sa.String(24)),
    sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
    sa.Column("holder", sa.String(120)),
    sa.Column("lease_token", sa.String(64)),
    sa.Column("lease_expires_ms", _Ms),
    sa.Column("fence", sa.Integer, nullable=False, server_default="0"),
    sa.Column("version", sa.Integer, nullable=False, server_default="1"),
    sa.Column("resolution", sa.JSON),
    sa.Column("resolve_key", sa.String(255)),
    sa.Column("resolve_fingerprint", sa.String(64)),
    sa.Column("created_ms", _Ms, nullable=False),
    sa.Column("updated_ms", _Ms, nullable=False),
    sa.Column("due_ms", _Ms, nullable=False),
    sa.Column("expires_ms", _Ms, nullable=False),
    sa.Column("group_id", _Id),
    sa.Column("fingerprint", sa.String(64)),
    sa.Column("on_expire", sa.String(24)),
    sa.Column("profile_priority", sa.Integer, nullable=False, server_default="1"),
    sa.Column("burnt_percent", sa.Integer, nullable=False, server_default="0"),
    sa.Column("warned_percent", sa.Integer, nullable=False, server_default="0"),
    sa.Column("claimed_ms", _Ms),
    sa.Column("decided_by", sa.String(120)),
    sa.Column("decided_action", sa.String(24)),
    sa.Column("decided_ms", _Ms),
    sa.Column("apply_ms", _Ms),
    sa.Column("apply_problem", sa.JSON),
    sa.Column("reopen_count", sa.Integer, nullable=False, server_default="0"),
    sa.Column("reopens", _Id),
    sa.Index("ix_escalations_tenant_due", "tenant", "status", "due_ms", "id"),
    sa.Index("ix_escalations_item", "item_id", "created_ms"),
    sa.Index("ix_escalations_run", "run_id", "created_ms"),
    sa.Index("ix_escalations_group", "group_id", "status"),
    sa.Index("ix_escalations_decided", "tenant", "decided_ms", "id"),
    sa.Index("ix_escalations_status_expires", "status", "expires_ms"),
)

escalation_log = sa.Table(
    "escalation_log",
    metadata,
    sa.Column("id", _Sequence, primary_key=True, autoincrement=True),
    sa.Column("escalation_id", _Id, sa.ForeignKey("escalations.id", ondelete="CASCADE"), nullable=False),
    sa.Column("at_ms", _Ms, nullable=False),
    sa.Column("what", sa.String(32), nullable=False),
    sa.Column("actor", sa.String(120), nullable=False),
    sa.Column("from_status", sa.String(24)),
    sa.Column("to_status", sa.String(24), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("fence", sa.Integer, nullable=False),
    sa.Column("note", sa.Text),
    sa.Column("detail", sa.JSON),
    sa.Index("ix_escalation_log_escalation", "escalation_id", "id"),
)

escalation_groups = sa.Table(
    "escalation_groups",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("tenant", sa.String(64), nullable=False),
    sa.Column("profile", sa.String(64), nullable=False),
    sa.Column("tool", sa.String(128)),
    sa.Column("kind", sa.String(64), nullable=False),
    sa.Column("split_from", _Id),
    sa.Column("merged_into", _Id),
    sa.Column("created_ms", _Ms, nullable=False),
    sa.Column("updated_ms", _Ms, nullable=False),
    sa.Index("ix_escalation_groups_tenant", "tenant", "id"),
)

escalation_group_keys = sa.Table(
    "escalation_group_keys",
    metadata,
    sa.Column("tenant", sa.String(64), primary_key=True),
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("group_id", _Id, sa.ForeignKey("escalation_groups.id", ondelete="CASCADE"), nullable=False),
    sa.Column("split_from", _Id),
    sa.Index("ix_escalation_group_keys_group", "group_id"),
)

review_requests = sa.Table(
    "review_requests",
    metadata,
    sa.Column("tenant", sa.String(64), primary_key=True),
    sa.Column("key", sa.String(255), primary_key=True),
    sa.Column("fingerprint", sa.String(64), nullable=False),
    sa.Column("answer", sa.JSON),
    sa.Column("created_ms", _Ms, nullable=False),
    sa.Index("ix_review_requests_created", "created_ms"),
)

guard_runs = sa.Table(
    "guard_runs",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("tenant", sa.String(64), nullable=False),
    sa.Column("agent", sa.String(128), nullable=False),
    sa.Column("external_run_id", sa.String(255), nullable=False),
    sa.Column("item_id", _Id, sa.ForeignKey("items.id", ondelete="SET NULL")),
    sa.Column("definition", sa.JSON, nullable=False),
    sa.Column("policy_id", sa.String(24), nullable=False),
    sa.Column("status", sa.String(24), nullable=False),
    sa.Column("version", sa.Integer, nullable=False, server_default="1"),
    sa.Column("records", sa.Integer, nullable=False, server_default="0"),
    sa.Column("decisions", sa.Integer, nullable=False, server_default="0"),
    sa.Column("epoch", sa.Integer, nullable=False, server_default="0"),
    sa.Column("progress", sa.JSON, nullable=False),
    sa.Column("halt", sa.JSON),
    sa.Column("escalation_id", _Id),
    sa.Column("outcome", sa.JSON),
    sa.Column("created_ms", _Ms, nullable=False),
    sa.Column("updated_ms", _Ms, nullable=False),
    sa.Column("ended_ms", _Ms),
    sa.UniqueConstraint("tenant", "agent", "external_run_id"),
    sa.Index("ix_guard_runs_item", "item_id"),
    sa.Index("ix_guard_runs_tenant_ended", "tenant", "ended_ms", "id"),
    sa.Index(
        "ix_guard_runs_ended",
        "ended_ms",
        sqlite_where=sa.text("ended_ms IS NOT NULL"),
        postgresql_where=sa.text("ended_ms IS NOT NULL"),
    ),
)

guard_records = sa.Table(
    "guard_records",
    metadata,
    sa.Column("run_id", _Id, sa.ForeignKey("guard_runs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("record", sa.Text, nullable=False),
    sqlite_with_rowid=False,  # rows are small and found by their key alone: one page written less
)

guard_snapshots = sa.Table(
    "guard_snapshots",
    metadata,
    sa.Column("run_id", _Id, sa.ForeignKey("guard_runs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("records", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
)

guard_decisions = sa.Table(
    "guard_decisions",
    metadata,
    sa.Column("run_id", _Id, sa.ForeignKey("guard_runs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("call_id", sa.String(200), primary_key=True),
    sa.Column("phase", sa.String(8), primary_key=True),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("id", _Id, nullable=False),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("tool", sa.String(128), nullable=False),
    sa.Column("fingerprint", sa.String(64), nullable=False),
    sa.Column("executes", sa.Boolean, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("report", sa.JSON),
    sa.Column("created_ms", _Ms, nullable=False),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("item_id", _Id, sa.ForeignKey("items.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("action", sa.String(24), nullable=False),
    sa.Column("actor", sa.String(120), nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("route", sa.String(24)),
    sa.Column("budget", sa.JSON),
    sa.Column("before", sa.JSON, nullable=False),
    sa.Column("started_ms", _Ms, nullable=False),
)

decisions = sa.Table(
    "decisions",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("tenant", sa.String(64), nullable=False),
    sa.Column("escalation_id", _Id, sa.ForeignKey("escalations.id", ondelete="CASCADE")),
    sa.Column("item_id", _Id, sa.ForeignKey("items.id", ondelete="CASCADE")),
    sa.Column("run_id", _Id, sa.ForeignKey("guard_runs.id", ondelete="CASCADE")),
    sa.Column("action", sa.String(24), nullable=False),
    sa.Column("actor", sa.String(120), nullable=False),
    sa.Column("at_ms", _Ms, nullable=False),
    sa.Column("item_version", sa.Integer),
    sa.Column("reason", sa.String(64)),
    sa.Column("detector", sa.String(24)),
    sa.Column("rule", sa.String(128)),
    sa.Column("tool", sa.String(128)),
    sa.Column("body", sa.JSON, nullable=False),
    sa.Index("ix_decisions_tenant_at", "tenant", "at_ms", "id"),
    sa.Index("ix_decisions_escalation", "escalation_id"),
    sa.Index("ix_decisions_item", "item_id"),
    sa.Index("ix_decisions_run", "run_id"),
)

inquiries = sa.Table(
    "inquiries",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("tenant", sa.String(64), nullable=False),
    sa.Column("escalation_id", _Id, sa.ForeignKey("escalations.id", ondelete="CASCADE"), nullable=False),
    sa.Column("item_id", _Id, sa.ForeignKey("items.id", ondelete="CASCADE"), nullable=False),
    sa.Column("question", sa.Text, nullable=False),
    sa.Column("asked_by", sa.String(120), nullable=False),
    sa.Column("asked_ms", _Ms, nullable=False),
    sa.Column("until_ms", _Ms, nullable=False),
    sa.Column("ended", sa.String(16)),
    sa.Column("ended_ms", _Ms),
    sa.Column("answer", sa.JSON),
    sa.Index("ix_inquiries_escalation", "escalation_id", "asked_ms"),
    sa.Index("ix_inquiries_item", "item_id", "asked_ms"),
    sa.Index(
        "ix_inquiries_open",
        "until_ms",
        sqlite_where=sa.text("ended IS NULL"),
        postgresql_where=sa.text("ended IS NULL"),
    ),
)

effects = sa.Table(
    "effects",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("item_id", _Id, sa.ForeignKey("items.id", ondelete="CASCADE"), nullable=False),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("tool", sa.String(128), nullable=False),
    sa.Column("arguments", sa.JSON, nullable=False),
    sa.Column("at_ms", _Ms, nullable=False),
    sa.Index("ix_effects_item", "item_id", "seq"),
)

budget_limits = sa.Table(
    "budget_limits",
    metadata,
    sa.Column("tenant", sa.String(64), primary_key=True),
    sa.Column("max_cost_micros", sa.BigInteger),
    sa.Column("max_items", sa.Integer),
    sa.Column("version", sa.Integer, nullable=False, server_default="1"),
    sa.Column("changed_by", sa.String(120), nullable=False),
    sa.Column("changed_ms", _Ms, nullable=False),
)

budget_days = sa.Table(
    "budget_days",
    metadata,
    sa.Column("tenant", sa.String(64), primary_key=True),
    sa.Column("day", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("reserved_micros", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("spent_micros", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("refused_micros", sa.BigInteger),
    sa.Column("model_calls", sa.Integer, nullable=False, server_default="0"),
    sa.Column("item_count", sa.Integer),
    sa.Column("told_percent", sa.Integer, nullable=False, server_default="0"),
)

switches = sa.Table(
    "switches",
    metadata,
    sa.Column("name", sa.String(32), primary_key=True),
    sa.Column("is_paused", sa.Boolean, nullable=False),
    sa.Column("reason", sa.String(500)),
    sa.Column("version", sa.Integer, nullable=False, server_default="1"),
    sa.Column("changed_by", sa.String(120), nullable=False),
    sa.Column("changed_ms", _Ms, nullable=False),
)

removed_blobs = sa.Table(
    "removed_blobs",
    metadata,
    sa.Column("tenant", sa.String(64), primary_key=True),
    sa.Column("sha256", sa.String(64), primary_key=True),
    sa.Column("is_gone", sa.Boolean, nullable=False),
    sa.Column("at_ms", _Ms, nullable=False),
)

webhook_endpoints = sa.Table(
    "webhook_endpoints",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("tenant", sa.String(64), nullable=False),
    sa.Column("url", sa.String(2000), nullable=False),
    sa.Column("description", sa.String(255)),
    sa.Column("events", sa.JSON, nullable=False),
    sa.Column("body", sa.String(8), nullable=False),
    sa.Column("allow_insecure", sa.Boolean, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("disabled_reason", sa.String(24)),
    sa.Column("secrets", sa.JSON, nullable=False),
    sa.Column("cursor_seq", sa.BigInteger, nullable=False),
    sa.Column("version", sa.Integer, nullable=False, server_default="1"),
    sa.Column("created_ms", _Ms, nullable=False),
    sa.Column("updated_ms", _Ms, nullable=False),
    sa.Index("ix_webhook_endpoints_tenant", "tenant", "created_ms", "id"),
)

webhook_lanes = sa.Table(
    "webhook_lanes",
    metadata,
    sa.Column("id", sa.String(48), primary_key=True),
    sa.Column(
        "endpoint_id", _Id, sa.ForeignKey("webhook_endpoints.id", ondelete="CASCADE"), nullable=False, index=True
    ),
    sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
    sa.Column("failing_since_ms", _Ms),
    sa.Column("spread_ms", _Ms),
    sa.Column("noticed_ms", _Ms),
    sa.Column("paused_until_ms", _Ms),
    sa.Column("last_failure_ms", _Ms),
    sa.Column("last_success_ms", _Ms),
)

webhook_deliveries = sa.Table(
    "webhook_deliveries",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("tenant", sa.String(64), nullable=False),
    sa.Column("endpoint_id", _Id, sa.ForeignKey("webhook_endpoints.id", ondelete="CASCADE"), nullable=False),
    sa.Column("lane", sa.String(48), nullable=False),
    sa.Column("url", sa.String(2000)),
    sa.Column("url_key", sa.String(32), nullable=False),
    sa.Column("event_id", _Id, nullable=False),
    sa.Column("event_seq", sa.BigInteger, nullable=False),
    sa.Column("event_type", sa.String(48), nullable=False),
    sa.Column("resource", _Id, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
    sa.Column("is_test", sa.Boolean, nullable=False),
    sa.Column("next_attempt_ms", _Ms),
    sa.Column("leased_until_ms", _Ms),
    sa.Column("last_status", sa.Integer),
    sa.Column("last_error", sa.String(24)),
    sa.Column("created_ms", _Ms, nullable=False),
    sa.Column("updated_ms", _Ms, nullable=False),
    sa.Column("finished_ms", _Ms),
    sa.UniqueConstraint("endpoint_id", "event_id", "url_key"),
    sa.Index("ix_webhook_deliveries_tenant", "tenant", "created_ms", "id"),
    sa.Index(
        "ix_webhook_deliveries_due",
        "lane",
        "next_attempt_ms",
        sqlite_where=sa.text("status = 'pending'"),
        postgresql_where=sa.text("status = 'pending'"),
    ),
    sa.Index(
        "ix_webhook_deliveries_leased",
        "lane",
        "leased_until_ms",
        sqlite_where=sa.text("leased_until_ms IS NOT NULL"),
        postgresql_where=sa.text("leased_until_ms IS NOT NULL"),
    ),
    sa.Index(
        "ix_webhook_deliveries_finished",
        "status",
        "finished_ms",
        sqlite_where=sa.text("finished_ms IS NOT NULL"),
        postgresql_where=sa.text("finished_ms IS NOT NULL"),
    ),
)

webhook_attempts = sa.Table(
    "webhook_attempts",
    metadata,
    sa.Column("delivery_id", _Id, sa.ForeignKey("webhook_deliveries.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at_ms", _Ms, nullable=False),
    sa.Column("status_code", sa.Integer),
    sa.Column("latency_ms", sa.Integer, nullable=False),
    sa.Column("error", sa.String(24)),
    sa.Column("next_attempt_ms", _Ms),
    sa.Column("response", sa.Text, nullable=False),
)

callback_origins = sa.Table(
    "callback_origins",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("tenant", sa.String(64), nullable=False),
    sa.Column("origin", sa.String(300), nullable=False),
    sa.Column("created_by", sa.String(120), nullable=False),
    sa.Column("created_ms", _Ms, nullable=False),
    sa.UniqueConstraint("tenant", "origin"),
)

item_callbacks = sa.Table(
    "item_callbacks",
    metadata,
    sa.Column("item_id", _Id, sa.ForeignKey("items.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("url_key", sa.String(32), primary_key=True),
    sa.Column("url", sa.String(2000), nullable=False),
    sa.Column(
        "endpoint_id", _Id, sa.ForeignKey("webhook_endpoints.id", ondelete="CASCADE"), nullable=False, index=True
    ),
    sa.Column("lane", sa.String(48), nullable=False),
)
