-- Commands: a row first, a message second.

-- Asks for a job to be cancelled. Until it started, claimed or not, this call ends it.
-- Locks:   as an ending: [days] → thread → unended jobs of the thread → execution is not needed, nothing of it changes → commands.
-- Raises:  RV101 not_found (also for somebody else's job).
-- Returns: the command as it is now; ended is true when this call ended the job; promoted is the next job that became current.
create or replace function corevo.request_cancel(
  p_account uuid,
  p_job uuid
) returns table (
  command_id uuid,
  ended boolean,
  promoted uuid
) language plpgsql as $$
#variable_conflict use_column
declare
  v_job corevo.jobs;
  v_now timestamptz;
begin
  -- the owner never changes: nobody else's call gets as far as the locks
  if exists (select 1 from corevo.jobs j where j.id = p_job and j.account_id = p_account) then
    v_job := corevo.lock_for_end(p_job);
  end if;
  if v_job.id is null then
    perform corevo.refuse('RV101', 'not_found', 'no such job');
  end if;
  v_now := corevo.now();
  ended := false;
  if v_job.state not in ('queued', 'running') then
    select c.id into command_id from corevo.commands c
      where c.job_id = p_job and c.kind = 'cancel' order by c.requested_at desc limit 1;
    if found then      -- one row, however often somebody asks
      return next;
      return;
    end if;
    insert into corevo.commands (id, job_id, kind, state, requested_at, done_at)
      values (corevo.uuid7(v_now), p_job, 'cancel', 'already_finished', v_now, v_now)
      returning id into command_id;
    return next;
    return;
  end if;
  select c.id into command_id from corevo.commands c
    where c.job_id = p_job and c.kind = 'cancel' and c.state in ('requested', 'accepted');
  if not found then
    insert into corevo.commands (id, job_id, kind, requested_at)
      values (corevo.uuid7(v_now), p_job, 'cancel', v_now)
      returning id into command_id;
    update corevo.jobs j set cancel_requested_at = coalesce(j.cancel_requested_at, v_now) where j.id = p_job;
  end if;
  if v_job.execution_id is null then
    promoted := corevo.end_job(v_job, 'cancelled', 'cancelled', null, '', v_now);
    ended := true;
  end if;
  return next;
end $$;

-- Hands the open commands of running executions to their owner: requested becomes accepted before the run sees it.
-- Locks:   the jobs (by id), never the executions (an append would find them busy) → commands.
-- Returns: the commands this call accepted and those accepted before and still open. A stale identity gets none.
create or replace function corevo.accept_commands(
  p_executions uuid[],
  p_tokens uuid[]
) returns table (
  command_id uuid,
  execution_id uuid,
  kind text,
  payload text
) language plpgsql as $$
#variable_conflict use_column
declare
  v_now timestamptz;
begin
  perform 1 from corevo.jobs j
    where j.id in (select x.job_id from corevo.executions x where x.id = any (p_executions))
    order by j.id for no key update;
  v_now := corevo.now();
  return query
    with mine as materialized (
      select x.id, x.job_id from corevo.executions x
        join unnest(p_executions, p_tokens) r (id, token) on r.id = x.id and r.token = x.token
        where x.ended_at is null
    )
    update corevo.commands c
      set state = 'accepted', accepted_at = coalesce(c.accepted_at, v_now)
      from mine
      where c.job_id = mine.job_id and c.state in ('requested', 'accepted')
      returning c.id, mine.id, c.kind, c.payload::text;
end $$;

-- One command of one job. The caller has checked that the job is the account's.
create or replace function corevo.read_command(
  p_account uuid,
  p_job uuid,
  p_command uuid
) returns table (
  id uuid,
  kind text,
  state text,
  requested_at timestamptz,
  accepted_at timestamptz,
  done_at timestamptz
) language sql stable as $$
  select c.id, c.kind, c.state, c.requested_at, c.accepted_at, c.done_at
    from corevo.commands c join corevo.jobs j on j.id = c.job_id
    where c.id = p_command and c.job_id = p_job and j.account_id = p_account
$$;
