-- The janitor: what nobody owns converges here. Each step decides again under its locks, one job a transaction,
-- and skips what somebody holds: the next sweep finds it.

-- Takes or renews a duty, and notes that a sweep was finished.
-- Locks:   the duty's row.
-- Returns: held, and watched_seconds: for how long sweeps have had no hole longer than half the TTL.
--          Fencing needs watched_seconds >= TTL: what nobody watched, nobody may call dead.
create or replace function corevo.hold_duty(
  p_name text,
  p_holder uuid,
  p_token uuid,
  p_lease_seconds double precision,
  p_ttl_seconds double precision,
  out held boolean,
  out watched_seconds double precision
) language plpgsql as $$
declare
  v_duty corevo.duties;
  v_now timestamptz;
begin
  insert into corevo.duties (name) values (p_name) on conflict do nothing;
  perform 1 from corevo.duties d where d.name = p_name for no key update;
  v_now := corevo.now();
  select d.* into v_duty from corevo.duties d where d.name = p_name;
  held := v_duty.token is null or v_duty.token = p_token or v_duty.until < v_now;
  if not held then
    watched_seconds := 0;
    return;
  end if;
  if v_duty.swept_at is null or v_now - v_duty.swept_at > p_ttl_seconds / 2 * interval '1 second' then
    v_duty.watching_since := v_now;
  end if;
  update corevo.duties d
    set holder = p_holder, token = p_token, until = v_now + p_lease_seconds * interval '1 second',
        swept_at = v_now, watching_since = v_duty.watching_since
    where d.name = p_name;
  watched_seconds := extract(epoch from v_now - v_duty.watching_since);
end $$;

-- Gives a duty back before its lease ends.
create or replace function corevo.drop_duty(
  p_name text,
  p_token uuid
) returns void language sql as $$
  update corevo.duties d set holder = null, token = null, until = null where d.name = p_name and d.token = p_token
$$;

-- Declares workers dead that have not beaten for the TTL. One conditional update decides, and it asks once more
-- whether anybody watched: after hold_duty this process may have frozen, or the database may have been away, and a
-- worker that could not beat is not dead.
-- Locks:   worker rows, skipping locked ones (such a worker is beating just now).
create or replace function corevo.fence_workers(p_ttl_seconds double precision)
returns table (worker_id uuid, name text) language plpgsql as $$
declare
  v_now timestamptz := corevo.now();
begin
  return query
    with silent as materialized (
      select w.id from corevo.workers w
        where w.fenced_at is null and w.beat_at < v_now - p_ttl_seconds * interval '1 second'
          and exists (select 1 from corevo.duties d
                        where d.name = 'janitor'
                          and d.watching_since <= v_now - p_ttl_seconds * interval '1 second'
                          and d.swept_at >= v_now - p_ttl_seconds / 2 * interval '1 second')
        order by w.id for no key update skip locked
    )
    update corevo.workers w set fenced_at = v_now
      from silent where w.id = silent.id and w.fenced_at is null
      returning w.id, w.name;
end $$;

-- Jobs that a sweep should look at: owner gone; running past the deadline or past a cancel by more than p_late_seconds.
create or replace function corevo.jobs_to_sweep(
  p_late_seconds double precision,
  p_limit int
) returns table (job_id uuid) language sql stable as $$
  select j.id from corevo.jobs j
    left join corevo.workers w on w.id = j.worker_id
    left join corevo.executions x on x.id = j.execution_id
    where j.worker_id is not null and j.state in ('queued', 'running')
      and (w.id is null or w.fenced_at is not null
           or (j.state = 'running' and least(x.deadline_at, j.cancel_requested_at)
                 < corevo.now() - p_late_seconds * interval '1 second'))
    order by j.claimed_at limit p_limit
$$;

-- Decides one job whose owner is gone or late.
-- Locks:   as an ending: [days] → thread → unended jobs of the thread → execution; busy ones are skipped.
-- Returns: result    busy | nothing | released | poison | lost | retry | cancelled | timed_out
--          and of an ended execution its id, epoch and terminal event; promoted, the next job that became current.
create or replace function corevo.sweep_job(
  p_job uuid,
  p_late_seconds double precision,
  out result text,
  out execution_id uuid,
  out epoch int,
  out terminal_seq bigint,
  out terminal_data text,
  out promoted uuid
) language plpgsql as $$
#variable_conflict use_column
declare
  v_job corevo.jobs;
  v_execution corevo.executions;
  v_now timestamptz;
  v_gone boolean;
  v_retry boolean := false;
  v_reason text;
  v_message text;
  v_text text;
begin
  v_job := corevo.lock_for_end(p_job, true);
  if v_job.id is null then
    result := 'busy';
    return;
  end if;
  v_now := corevo.now();
  result := 'nothing';
  if v_job.state not in ('queued', 'running') or v_job.worker_id is null then
    return;
  end if;
  v_gone := not exists (select 1 from corevo.workers w where w.id = v_job.worker_id and w.fenced_at is null);

  if v_job.execution_id is null then     -- claimed, not started: nothing happened outside
    if not v_gone then
      return;
    end if;
    if v_job.losses + 1 >= 3 then
      promoted := corevo.end_job(v_job, 'failed', 'poison', 'three workers died before they could start it',
        corevo.job_text(p_job), v_now);
      result := 'poison';
    else
      update corevo.jobs j
        set worker_id = null, claimed_at = null, losses = j.losses + 1, waiting_since = v_now
        where j.id = p_job;
      result := 'released';
    end if;
    return;
  end if;

  perform 1 from corevo.executions x where x.id = v_job.execution_id for no key update;
  select x.* into v_execution from corevo.executions x where x.id = v_job.execution_id;
  if v_gone then
    result := 'lost';
    v_reason := coalesce((select w.trouble from corevo.workers w where w.id = v_job.worker_id), 'worker_lost');
    v_message := 'the worker was lost; things it began outside may have happened';
    v_retry := v_job.attempts < v_job.max_attempts and v_job.cancel_requested_at is null;
  elsif v_job.cancel_requested_at < v_now - p_late_seconds * interval '1 second' then
    result := 'cancelled';
    v_reason := 'cancelled';
    v_message := 'the run did not stop when it was asked to';
  elsif v_execution.deadline_at < v_now - p_late_seconds * interval '1 second' then
    result := 'timed_out';
    v_reason := 'deadline';
    v_message := 'the run went on past its deadline';
  else
    return;
  end if;
  execution_id := v_execution.id; epoch := v_execution.epoch;
  select e.terminal_seq, e.terminal_data, e.text_so_far into terminal_seq, terminal_data, v_text
    from corevo.end_execution(v_execution.id, result, v_reason, v_message, v_retry, v_now) e;
  if v_retry then
    perform corevo.requeue_job(v_job, v_now);
    result := 'retry';
  else
    promoted := corevo.end_job(v_job, result, v_reason, v_message, v_text, v_now);
  end if;
end $$;

-- Since when the janitor has watched without a hole: a time in which nobody could take a job, because the database was
-- away for instance, must not count against it. Nobody has ever watched: no limit.
create or replace function corevo.watched_since()
returns timestamptz language sql stable as $$
  select coalesce(max(d.watching_since), '-infinity') from corevo.duties d where d.name = 'janitor'
$$;

-- Jobs that no worker took in time. Only time counts in which they were claimable and somebody watched.
create or replace function corevo.jobs_to_expire(
  p_limit_seconds double precision,
  p_limit int
) returns table (job_id uuid) language sql stable as $$
  select j.id from corevo.jobs j
    where j.state = 'queued' and j.blocked_by is null and j.worker_id is null
      and greatest(j.waiting_since, corevo.watched_since()) < corevo.now() - p_limit_seconds * interval '1 second'
    order by j.waiting_since limit p_limit
$$;

-- Expires one of them.
-- Locks:   as an ending; busy ones are skipped.
-- Returns: whether it did, and the next job that became current.
create or replace function corevo.expire_job(
  p_job uuid,
  p_limit_seconds double precision,
  out expired boolean,
  out promoted uuid
) language plpgsql as $$
declare
  v_job corevo.jobs;
  v_now timestamptz;
begin
  v_job := corevo.lock_for_end(p_job, true);
  v_now := corevo.now();
  expired := coalesce(
    v_job.state = 'queued' and v_job.blocked_by is null and v_job.worker_id is null
    and greatest(v_job.waiting_since, corevo.watched_since()) < v_now - p_limit_seconds * interval '1 second', false);
  if expired then
    promoted := corevo.end_job(v_job, 'expired', 'queue_timeout',
      format('no worker took it within %s s', round(p_limit_seconds::numeric)), corevo.job_text(p_job), v_now);
  end if;
end $$;

-- Makes the day partitions of the events from yesterday to p_days_ahead. Each is created alone and then attached:
-- CREATE … PARTITION OF would lock the whole table against readers and writers.
-- Locks:   one advisory lock, so that two callers do not make one day twice; ATTACH takes no lock that stops events.
-- Returns: how many it made.
create or replace function corevo.ensure_partitions(p_days_ahead int)
returns int language plpgsql as $$
declare
  v_day date;
  v_today date;
  v_name text;
  v_made int := 0;
begin
  perform pg_advisory_xact_lock(hashtextextended('corevo.ensure_partitions', 1));
  v_today := (corevo.now() at time zone 'utc')::date;
  for i in -1 .. p_days_ahead loop
    v_day := v_today + i;
    v_name := 'events_' || to_char(v_day, 'YYYYMMDD');
    if to_regclass('corevo.' || v_name) is null then
      execute format('create table corevo.%I (like corevo.events including all)', v_name);
      execute format('alter table corevo.events attach partition corevo.%I for values from (%L) to (%L)', v_name,
        corevo.uuid7_floor(v_day::timestamp at time zone 'utc'), corevo.uuid7_floor((v_day + 1)::timestamp at time zone 'utc'));
      v_made := v_made + 1;
    end if;
  end loop;
  return v_made;
end $$;

-- For how many days from today on, without a hole, events have a place.
create or replace function corevo.partitions_ahead()
returns int language sql stable as $$
  select coalesce(min(i), 61)::int
    from generate_series(0, 60) i
    where to_regclass('corevo.events_' || to_char((corevo.now() at time zone 'utc')::date + i, 'YYYYMMDD')) is null
$$;
