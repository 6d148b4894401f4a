-- The tables of the protocol. Rules that a table can keep by itself are constraints and unique indexes,
-- each with a sentence that says what it prevents; everything else is a function in sql/functions/.

-- ── people ────────────────────────────────────────────────────────────────────────────────────────────

create table corevo.accounts (
  id          uuid primary key,
  email       text,                       -- null for the one local account of COREVO_AUTH=off
  name        text not null,
  created_at  timestamptz not null,
  disabled_at timestamptz
);
-- prevents two accounts that differ only in the case of their address
create unique index accounts_email on corevo.accounts (lower(email)) where email is not null;

create table corevo.threads (
  id             uuid primary key,
  account_id     uuid not null references corevo.accounts (id),
  title          text not null default '',
  agent          text,                    -- of the newest job; the default for the next one
  current_job_id uuid,                    -- the one job of this thread that may be claimed or is running
  last_turn      int not null default 0,  -- the newest job's turn; jobs.turn is unique in the thread
  created_at     timestamptz not null,
  updated_at     timestamptz not null
) with (fillfactor = 70);
create index threads_by_account on corevo.threads (account_id, updated_at desc, id desc);

create table corevo.messages (
  id         uuid primary key,
  thread_id  uuid not null references corevo.threads (id),
  job_id     uuid not null,
  turn       int not null,                -- the job's turn
  part       int not null,                -- 1 the user's message, 2 the assistant's
  role       text not null check (role in ('user', 'assistant', 'tool')),
  text       text not null,
  status     text,                        -- of an assistant message: the state its job ended in
  created_at timestamptz not null
);
-- prevents a second answer to one turn; also the order in which a thread is read
create unique index messages_in_order on corevo.messages (thread_id, turn, part);

-- ── workers and what they serve ───────────────────────────────────────────────────────────────────────

create table corevo.agents (
  name            text primary key,
  lane            text not null check (lane in ('normal', 'heavy')),
  timeout_seconds double precision not null check (timeout_seconds > 0),
  retry_safe      boolean not null,
  max_attempts    int not null check (max_attempts between 1 and 100),
  registered_at   timestamptz not null,
  check (retry_safe or max_attempts = 1)  -- prevents a new attempt of an agent that never declared itself safe
);

-- Small and hot: one update a heartbeat. No index on beat_at, so that a beat stays a HOT update.
create table corevo.workers (
  id          uuid primary key,           -- fresh at every boot
  name        text not null,              -- for people; may repeat
  agents      text[] not null,
  version     text not null,
  started_at  timestamptz not null,
  beat_at     timestamptz not null,
  lag_ms      double precision not null default 0,  -- greatest event loop lag since the beat before
  draining_at timestamptz,
  stopped_at  timestamptz,                -- it said goodbye
  fenced_at   timestamptz                 -- from here on it may claim and start nothing; never cleared
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 100);

create table corevo.duties (
  name           text primary key,
  holder         uuid,
  token          uuid,
  until          timestamptz,
  swept_at       timestamptz,             -- the last finished sweep, whoever made it
  watching_since timestamptz              -- sweeps have had no hole longer than TTL/2 since then
) with (fillfactor = 50);

-- ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────

create table corevo.jobs (
  id                   uuid primary key,
  account_id           uuid not null references corevo.accounts (id),
  thread_id            uuid not null references corevo.threads (id),
  turn                 int not null,
  agent                text not null,
  lane                 text not null,
  input                json not null,
  metadata             json,
  fingerprint          text not null,     -- sha256 of agent and input: "the same thing again"
  timeout_seconds      double precision not null,
  max_attempts         int not null,
  state                text not null,
  blocked_by           uuid,              -- the thread's current job, while this one is next
  ready_at             timestamptz not null,  -- claimable from here on; also the order of the queue
  waiting_since        timestamptz not null,  -- the queue clock: admit, promote, release, retry
  worker_id            uuid,
  claimed_at           timestamptz,
  epoch                int not null default 0,
  token                uuid,
  claim_request        uuid,
  execution_id         uuid,              -- of the open execution; of the last one once the job ended in it
  execution_started_at timestamptz,
  started_at           timestamptz,       -- of the first attempt
  attempts             int not null default 0,
  losses               int not null default 0,  -- claims lost before start, in a row
  cancel_requested_at  timestamptz,
  error_code           text,
  error_message        text,
  created_at           timestamptz not null,
  finished_at          timestamptz,
  check (lane in ('normal', 'heavy')),
  check (state in ('queued', 'running', 'completed', 'failed', 'cancelled', 'interrupted', 'timed_out', 'lost', 'expired')),
  -- prevents an owner without a time, and a time without an owner
  check ((worker_id is null) = (claimed_at is null) or state not in ('queued', 'running')),
  -- prevents an execution that nobody started
  check ((execution_id is null) = (execution_started_at is null)),
  -- prevents a queued job that has already begun outside effects
  check (state <> 'queued' or execution_id is null),
  -- prevents a running job without owner, token or execution
  check (state <> 'running' or (worker_id is not null and token is not null and execution_id is not null and blocked_by is null)),
  -- prevents a next job that somebody owns
  check (blocked_by is null or (state = 'queued' and worker_id is null)),
  -- prevents an ended job that still has an owner, and an unended one with an end
  check ((state in ('queued', 'running')) = (finished_at is null)),
  check (state in ('queued', 'running') or worker_id is null)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
-- prevents two jobs of one turn
create unique index jobs_turn on corevo.jobs (thread_id, turn);
-- prevents two jobs of one thread that may be claimed or are running
create unique index jobs_one_current on corevo.jobs (thread_id) where state in ('queued', 'running') and blocked_by is null;
-- the queue; literal states, or the planner cannot use it
create index jobs_claimable on corevo.jobs (lane, ready_at, id) where state = 'queued' and blocked_by is null and worker_id is null;
create index jobs_owned on corevo.jobs (worker_id) where worker_id is not null and state in ('queued', 'running');
create index jobs_unended_of_thread on corevo.jobs (thread_id, id) where state in ('queued', 'running');
create index jobs_unended_of_account on corevo.jobs (account_id) where state in ('queued', 'running');
create index jobs_by_account on corevo.jobs (account_id, created_at desc, id desc);

create table corevo.idempotency (
  account_id uuid not null references corevo.accounts (id),
  key        text not null,
  body_hash  text not null,
  outcome    text not null,
  job_id     uuid not null,
  command_id uuid,
  created_at timestamptz not null,
  primary key (account_id, key)           -- prevents two jobs of one key
);
create index idempotency_by_job on corevo.idempotency (job_id);

create table corevo.executions (
  id          uuid primary key,           -- UUIDv7 made by corevo.uuid7: it decides the day partition of its events
  job_id      uuid not null references corevo.jobs (id),
  epoch       int not null,
  token       uuid not null,
  worker_id   uuid not null,
  started_at  timestamptz not null,
  deadline_at timestamptz not null,
  ended_at    timestamptz,
  outcome     text check (outcome in ('completed', 'failed', 'cancelled', 'interrupted', 'timed_out', 'lost')),
  reason      text,
  will_retry  boolean not null default false,
  check ((ended_at is null) = (outcome is null)),
  unique (job_id, epoch)                  -- prevents two executions of one claim generation
) with (fillfactor = 80);
-- prevents two open executions of one job
create unique index executions_open on corevo.executions (job_id) where ended_at is null;

-- One row an event, in a table of its own a day. No foreign key and no default partition: a day goes by DETACH and DROP.
create table corevo.events (
  execution_id uuid not null,
  seq          bigint not null check (seq >= 1),
  type         text not null,
  data         json not null,             -- the bytes the owner froze; gateways splice them, nobody re-encodes them
  stored_at    timestamptz not null default clock_timestamp(),
  primary key (execution_id, seq)         -- prevents two facts of one number
) partition by range (execution_id);

create table corevo.commands (
  id           uuid primary key,
  job_id       uuid not null references corevo.jobs (id),
  kind         text not null check (kind in ('cancel', 'input', 'answer')),
  state        text not null default 'requested'
               check (state in ('requested', 'accepted', 'done', 'already_finished', 'returned', 'unknown')),
  payload      json,
  requested_at timestamptz not null,
  accepted_at  timestamptz,
  done_at      timestamptz,
  check ((state in ('requested', 'accepted')) = (done_at is null))
) with (fillfactor = 80);
create index commands_of_job on corevo.commands (job_id, requested_at);
create index commands_open on corevo.commands (job_id) where state in ('requested', 'accepted');
-- prevents a heap of cancels for one run: asking again finds the first
create unique index commands_one_open_cancel on corevo.commands (job_id) where kind = 'cancel' and state in ('requested', 'accepted');

-- ── operations ────────────────────────────────────────────────────────────────────────────────────────

create table corevo.settings (
  name       text primary key,
  value      json not null,
  updated_at timestamptz not null,
  updated_by text not null
);

create table corevo.audit (
  id     bigint generated always as identity primary key,
  at     timestamptz not null,
  actor  text not null,
  action text not null,
  target text,
  reason text not null,
  detail json
);
