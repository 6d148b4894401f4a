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
    promoted := corevo.end_job(v_job, 'cancelled', 'cancelled', null, corevo.job_text(p_job), v_now);
    ended := true;
  end if;
  return next;
end $$;

-- Writes a command of a job that is not ended.
-- Needs:  the job locked, so that no ended job can gain one.
-- Raises: RV108 too_many_commands: a run that takes none must not gather them without bound.
create or replace function corevo.insert_command(
  p_job corevo.jobs,
  p_kind text,
  p_payload json,
  p_now timestamptz
) returns uuid language plpgsql as $$
declare
  v_id uuid := corevo.uuid7(p_now);
begin
  if (select count(*) from corevo.commands c where c.job_id = p_job.id and c.state in ('requested', 'accepted')) >= 100 then
    perform corevo.refuse('RV108', 'too_many_commands', 'the run has not taken 100 earlier ones');
  end if;
  insert into corevo.commands (id, job_id, kind, payload, requested_at) values (v_id, p_job.id, p_kind, p_payload, p_now);
  return v_id;
end $$;

-- Gives a job that is not ended an input (a sentence) or an answer (to a question it asked).
-- Locks:   the job, before it looks.
-- Raises:  RV101 not_found (also for somebody else's job) · RV108 too_many_commands.
-- Returns: the command; already_finished when the job had ended.
create or replace function corevo.request_command(
  p_account uuid,
  p_job uuid,
  p_kind text,
  p_payload json
) returns uuid language plpgsql as $$
declare
  v_job corevo.jobs;
  v_now timestamptz;
  v_id uuid;
begin
  if not exists (select 1 from corevo.jobs j where j.id = p_job and j.account_id = p_account) then
    perform corevo.refuse('RV101', 'not_found', 'no such job');
  end if;
  perform 1 from corevo.jobs j where j.id = p_job for no key update;
  v_now := corevo.now();
  select j.* into v_job from corevo.jobs j where j.id = p_job;
  if v_job.state in ('queued', 'running') then
    return corevo.insert_command(v_job, p_kind, p_payload, v_now);
  end if;
  v_id := corevo.uuid7(v_now);
  insert into corevo.commands (id, job_id, kind, state, payload, requested_at, done_at)
    values (v_id, p_job, p_kind, 'already_finished', p_payload, v_now, v_now);
  return v_id;
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
    ), accepted as (
      update corevo.commands c
        set state = 'accepted', accepted_at = coalesce(c.accepted_at, v_now)
        from mine
        where c.job_id = mine.job_id and c.state in ('requested', 'accepted')
        returning c.id, mine.id as execution_id, c.kind, c.payload::text as payload, c.requested_at
    )
    select a.id, a.execution_id, a.kind, a.payload from accepted a order by a.requested_at, a.id;
end $$;

-- Settles accepted commands of a running execution: done, the run has taken it; returned, it cannot.
-- A taken input becomes a message of the thread, between the job's message and its answer.
-- Locks:   the job, never the execution (an append would find it busy) → commands.
-- Raises:  RV001 stale, with what it lost to.
-- Returns: the state each command has now; asked again it answers the same.
create or replace function corevo.settle_commands(
  p_execution uuid,
  p_token uuid,
  p_commands uuid[],
  p_state text
) returns table (
  command_id uuid,
  state text
) language plpgsql as $$
#variable_conflict use_column
declare
  v_execution corevo.executions;
  v_job corevo.jobs;
  v_now timestamptz;
  v_command corevo.commands;
begin
  select x.* into v_execution from corevo.executions x where x.id = p_execution;
  perform 1 from corevo.jobs j where j.id = v_execution.job_id for no key update;
  v_now := corevo.now();
  select x.* into v_execution from corevo.executions x where x.id = p_execution;
  if v_execution.id is null or v_execution.token <> p_token or v_execution.ended_at is not null then
    perform corevo.refuse('RV001', 'stale', case
      when v_execution.id is null then 'gone' when v_execution.token <> p_token then 'token' else v_execution.outcome end);
  end if;
  if p_state not in ('done', 'returned') then
    perform corevo.refuse('RV003', 'bad_call', 'a command is settled as done or returned');
  end if;
  select j.* into v_job from corevo.jobs j where j.id = v_execution.job_id;
  for v_command in
    select c.* from corevo.commands c
      where c.id = any (p_commands) and c.job_id = v_job.id and c.state = 'accepted' and c.kind in ('input', 'answer')
      order by c.id for no key update
  loop
    update corevo.commands c set state = p_state, done_at = v_now where c.id = v_command.id;
    if p_state = 'done' and v_command.kind = 'input' then
      insert into corevo.messages (id, thread_id, job_id, turn, part, role, text, created_at, command_id)
        select corevo.uuid7(v_now), v_job.thread_id, v_job.id, v_job.turn, coalesce(max(m.part), 1) + 1, 'user',
               v_command.payload ->> 'text', v_now, v_command.id
          from corevo.messages m where m.thread_id = v_job.thread_id and m.turn = v_job.turn and m.part < 1000;
    end if;
  end loop;
  return query select c.id, c.state from corevo.commands c where c.id = any (p_commands) and c.job_id = v_job.id;
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
