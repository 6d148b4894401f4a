-- Ownership before and at the start: claim, release, start.

-- Gives a worker up to p_limit claimable jobs of one lane, oldest first.
-- Locks:   the request (advisory, this transaction) → the picked jobs, skipping locked ones.
-- Raises:  RV004 worker_fenced.
-- Returns: the claims. Sent again with the same request id, it returns those of the first time that did not start yet;
--          two sent at once would both pick without the lock on the request.
-- Without a sort only jobs_claimable gives the order. On a quiet queue every small index looks as good to the planner,
-- and a plan that reads and sorts all unended jobs stays cached when the queue has grown.
create or replace function corevo.claim(
  p_worker uuid,
  p_request uuid,
  p_agents text[],
  p_lane text,
  p_limit int
) returns table (
  job_id uuid,
  epoch int,
  token uuid
) language plpgsql set enable_sort to off as $$
#variable_conflict use_column
declare
  v_now timestamptz;
begin
  perform pg_advisory_xact_lock(hashtextextended(p_request::text, 1));
  v_now := corevo.now();
  perform 1 from corevo.workers w where w.id = p_worker and w.fenced_at is null;
  if not found then
    perform corevo.refuse('RV004', 'worker_fenced', 'this worker was declared dead');
  end if;
  return query
    select j.id, j.epoch, j.token from corevo.jobs j
      where j.worker_id = p_worker and j.claim_request = p_request and j.state = 'queued';
  if found then
    return;
  end if;
  -- materialized: as a sub-select with a limit the pick may run twice
  return query
    with picked as materialized (
      select j.id from corevo.jobs j
        where j.lane = p_lane and j.state = 'queued' and j.blocked_by is null and j.worker_id is null
          and j.ready_at <= v_now and j.agent = any (p_agents)
          and j.claimed_at is null and j.execution_id is null and j.execution_started_at is null
        order by j.ready_at, j.id
        limit p_limit
        for no key update skip locked
    )
    update corevo.jobs j
      set worker_id = p_worker, claimed_at = v_now, epoch = j.epoch + 1, token = gen_random_uuid(), claim_request = p_request
      from picked where j.id = picked.id
      returning j.id, j.epoch, j.token;
end $$;

-- Gives a claim back that did not start. Burns nothing: only a sweep counts a loss.
-- Locks:  the job.
-- Raises: RV001 stale, with the state or owner it lost to.
create or replace function corevo.release(
  p_job uuid,
  p_epoch int,
  p_token uuid
) returns void language plpgsql as $$
declare
  v_job corevo.jobs;
  v_now timestamptz;
begin
  perform 1 from corevo.jobs j where j.id = p_job for no key update;
  v_now := corevo.now();
  update corevo.jobs j
    set worker_id = null, claimed_at = null, waiting_since = v_now
    where j.id = p_job and j.state = 'queued' and j.worker_id is not null and j.epoch = p_epoch and j.token = p_token;
  if not found then
    select j.* into v_job from corevo.jobs j where j.id = p_job;
    perform corevo.refuse('RV001', 'stale', corevo.lost_to(v_job, p_epoch));
  end if;
end $$;

-- Says in one word what a stale claim lost to.
create or replace function corevo.lost_to(
  p_job corevo.jobs,
  p_epoch int
) returns text language sql immutable as $$
  select case
    when p_job.id is null then 'gone'
    when p_job.epoch > p_epoch then 'newer_claim'
    when p_job.state not in ('queued', 'running') then p_job.state
    when p_job.worker_id is null then 'released'
    when p_job.execution_id is not null then 'started'
    else 'token'
  end
$$;

-- What claimed jobs need to run. Read before start, so that a failure here costs nothing.
-- Returns: the jobs that this worker holds with these tokens.
create or replace function corevo.read_claims(
  p_worker uuid,
  p_jobs uuid[],
  p_tokens uuid[]
) returns table (
  job_id uuid,
  thread_id uuid,
  account_id uuid,
  turn int,
  agent text,
  lane text,
  input json,
  metadata json,
  timeout_seconds double precision,
  attempt int,
  max_attempts int,
  created_at timestamptz,
  has_commands boolean
) language sql stable as $$
  select j.id, j.thread_id, j.account_id, j.turn, j.agent, j.lane, j.input, j.metadata, j.timeout_seconds,
         j.attempts + 1, j.max_attempts, j.created_at,
         exists (select 1 from corevo.commands c where c.job_id = j.id and c.state in ('requested', 'accepted'))
    from unnest(p_jobs, p_tokens) c (job, token)
    join corevo.jobs j on j.id = c.job and j.token = c.token and j.worker_id = p_worker
$$;

-- The messages a run sees: those of earlier jobs of the thread and its own, newest first, within both limits.
create or replace function corevo.read_context(
  p_thread uuid,
  p_turn int,
  p_limit int,
  p_limit_characters int
) returns table (
  role text,
  text text,
  status text,
  created_at timestamptz
) language sql stable as $$
  select m.role, m.text, m.status, m.created_at
    from (
      select m.role, m.text, m.status, m.created_at, m.turn, m.part,
             sum(length(m.text)) over (order by m.turn desc, m.part desc) as characters,
             row_number() over (order by m.turn desc, m.part desc) as place
        from (
          select m.role, m.text, m.status, m.created_at, m.turn, m.part from corevo.messages m
            where m.thread_id = p_thread and m.turn <= p_turn
            order by m.turn desc, m.part desc limit p_limit
        ) m
    ) m
    where m.characters <= p_limit_characters or m.place = 1
    order by m.turn desc, m.part desc
$$;

-- Starts claimed jobs: from here on outside effects may exist.
-- Locks:   the jobs (by id).
-- Returns: one row a job: started, with its execution; worker_fenced; or stale, with what it lost to.
--          Sent again with the same token it returns the same execution.
create or replace function corevo.start(
  p_worker uuid,
  p_jobs uuid[],
  p_epochs int[],
  p_tokens uuid[]
) returns table (
  job_id uuid,
  result text,
  execution_id uuid,
  remaining_seconds double precision,
  ended_by text
) language plpgsql as $$
#variable_conflict use_column
declare
  v_now timestamptz;
  v_live boolean;
  v_job corevo.jobs;
  v_execution corevo.executions;
  v_epoch int;
  v_token uuid;
begin
  perform 1 from corevo.jobs j where j.id = any (p_jobs) order by j.id for no key update;
  v_now := corevo.now();
  v_live := exists (select 1 from corevo.workers w where w.id = p_worker and w.fenced_at is null);
  for job_id, v_epoch, v_token in
    select c.job, c.epoch, c.token from unnest(p_jobs, p_epochs, p_tokens) c (job, epoch, token)
  loop
    execution_id := null; remaining_seconds := null; ended_by := null;
    select j.* into v_job from corevo.jobs j where j.id = job_id;
    select x.* into v_execution from corevo.executions x
      where x.job_id = v_job.id and x.epoch = v_epoch and x.token = v_token;
    if found then
      execution_id := v_execution.id;
      if v_execution.ended_at is null then
        result := 'started';
        remaining_seconds := extract(epoch from v_execution.deadline_at - v_now);
      else
        result := 'stale'; ended_by := v_execution.outcome;
      end if;
    elsif v_job.id is null or v_job.state <> 'queued' or v_job.worker_id is distinct from p_worker
          or v_job.epoch <> v_epoch or v_job.token is distinct from v_token then
      result := 'stale';
      ended_by := corevo.lost_to(v_job, v_epoch);
    elsif not v_live then
      result := 'worker_fenced';
    else
      result := 'started';
      execution_id := corevo.uuid7(v_now);
      remaining_seconds := v_job.timeout_seconds;
      insert into corevo.executions (id, job_id, epoch, token, worker_id, started_at, deadline_at)
        values (execution_id, v_job.id, v_epoch, v_token, p_worker, v_now, v_now + v_job.timeout_seconds * interval '1 second');
      insert into corevo.events (execution_id, seq, type, data)
        values (execution_id, 1, 'run.started', '{}');
      update corevo.jobs j
        set state = 'running', execution_id = start.execution_id, execution_started_at = v_now,
            started_at = coalesce(j.started_at, v_now), attempts = j.attempts + 1, losses = 0
        where j.id = v_job.id;
    end if;
    return next;
  end loop;
end $$;

-- When the next job that waits for its time becomes claimable, in seconds from now; null when none does.
-- A worker sleeps no longer than that: work that becomes due must not wait for the next look.
create or replace function corevo.next_due(
  p_agents text[],
  p_lanes text[]
) returns double precision language sql volatile as $$
  select extract(epoch from min(j.ready_at) - corevo.now())::double precision
    from corevo.jobs j
    where j.state = 'queued' and j.blocked_by is null and j.worker_id is null
      and j.lane = any (p_lanes) and j.agent = any (p_agents)
$$;
