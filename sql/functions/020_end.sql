-- How a job ends. These are the internal parts of every ending: finish, cancel, replace, sweep, expire.

-- Locks what an ending needs, for one job.
-- Locks:   [days of its hold come here] → thread → all unended jobs of the thread (by id).
-- Returns: the job as it is under the locks; null when it does not exist, or when p_skip and somebody holds it.
-- All unended jobs, because promotion re-points the next ones; immutable columns are read before any lock.
create or replace function corevo.lock_for_end(
  p_job uuid,
  p_skip boolean default false
) returns corevo.jobs language plpgsql as $$
declare
  v_job corevo.jobs;
begin
  select j.* into v_job from corevo.jobs j where j.id = p_job;
  if not found then
    return null;
  end if;
  if p_skip then
    perform 1 from corevo.threads t where t.id = v_job.thread_id for no key update skip locked;
    if not found then
      return null;
    end if;
    perform 1 from corevo.jobs j where j.id = p_job for no key update skip locked;
    if not found then
      return null;
    end if;
  else
    perform 1 from corevo.threads t where t.id = v_job.thread_id for no key update;
  end if;
  perform 1 from corevo.jobs j
    where j.thread_id = v_job.thread_id and j.state in ('queued', 'running')
    order by j.id for no key update;
  select j.* into v_job from corevo.jobs j where j.id = p_job;
  return v_job;
end $$;

-- The text an execution has said so far, from its stored deltas.
-- Workers sanitise what they send, but an ending must never fail over one bad row: text that cannot be
-- extracted (an escaped NUL, half a surrogate pair) falls back to row by row, and a bad row counts as U+FFFD.
create or replace function corevo.execution_text(p_execution uuid)
returns text language plpgsql set enable_seqscan to off as $$
declare
  v_text text;
  v_data json;
begin
  begin
    select coalesce(string_agg(e.data ->> 'text', '' order by e.seq), '') into v_text
      from corevo.events e where e.execution_id = p_execution and e.type = 'text.delta';
    return v_text;
  exception when data_exception or program_limit_exceeded then
    v_text := '';
  end;
  for v_data in
    select e.data from corevo.events e where e.execution_id = p_execution and e.type = 'text.delta' order by e.seq
  loop
    begin
      v_text := v_text || coalesce(v_data ->> 'text', '');
    exception when data_exception or program_limit_exceeded then
      v_text := v_text || U&'\FFFD';
    end;
  end loop;
  return v_text;
end $$;

-- The text of a job's newest execution: what a job has said that ends while none is open.
create or replace function corevo.job_text(p_job uuid)
returns text language sql volatile as $$
  select coalesce(
    (select corevo.execution_text(x.id) from corevo.executions x where x.job_id = p_job order by x.epoch desc limit 1), '')
$$;

-- Ends one execution: writes its terminal event above everything stored.
-- Needs:   the execution locked by the caller, in an earlier statement.
-- Returns: the terminal event, and the text so far.
create or replace function corevo.end_execution(
  p_execution uuid,
  p_outcome text,
  p_reason text,
  p_message text,
  p_retry boolean,
  p_now timestamptz,
  out terminal_seq bigint,
  out terminal_data text,
  out text_so_far text
) language plpgsql set enable_seqscan to off as $$
begin
  select coalesce(max(e.seq), 0) + 1 into terminal_seq from corevo.events e where e.execution_id = p_execution;
  terminal_data := json_strip_nulls(json_build_object(
    'reason', p_reason, 'message', p_message, 'will_retry', case when p_retry then true end))::text;
  insert into corevo.events (execution_id, seq, type, data)
    values (p_execution, terminal_seq, 'run.' || p_outcome, terminal_data::json);
  update corevo.executions x
    set ended_at = p_now, outcome = p_outcome, reason = p_reason, will_retry = p_retry
    where x.id = p_execution;
  text_so_far := corevo.execution_text(p_execution);
end $$;

-- Puts a job back into the queue for a new attempt: its thread, its line and its hold stay.
-- Needs: the job locked, its execution ended with will_retry.
create or replace function corevo.requeue_job(
  p_job corevo.jobs,
  p_now timestamptz
) returns void language plpgsql as $$
declare
  v_ready timestamptz := p_now + least(30, power(2, greatest(p_job.attempts - 1, 0))) * interval '1 second';
begin
  update corevo.jobs j
    set state = 'queued', worker_id = null, claimed_at = null, execution_id = null, execution_started_at = null,
        ready_at = v_ready, waiting_since = v_ready
    where j.id = p_job.id;
end $$;

-- Ends a job, in the same transaction as its execution: state, hold, leases, commands, message, hand-over of the thread.
-- Needs:   everything that lock_for_end locks, and the execution if there is one; p_job as read under those locks.
-- Locks:   [hold] → commands → [leases].
-- Returns: the next job that became current, or null.
create or replace function corevo.end_job(
  p_job corevo.jobs,
  p_state text,
  p_code text,
  p_message text,
  p_text text,
  p_now timestamptz
) returns uuid language plpgsql as $$
declare
  v_next uuid;
begin
  update corevo.jobs j
    set state = p_state, finished_at = p_now, worker_id = null, blocked_by = null, error_code = p_code, error_message = p_message
    where j.id = p_job.id;

  -- (hold: resolved here, into its own day)

  update corevo.commands c
    set done_at = p_now,
        state = case
          when c.kind = 'cancel' and p_state = 'cancelled' then 'done'
          when c.kind = 'cancel' then 'already_finished'
          when c.state = 'accepted' and p_state = 'lost' then 'unknown'
          else 'returned'
        end
    where c.job_id = p_job.id and c.state in ('requested', 'accepted');

  -- (leases: released here, but for those under a call that still runs)

  insert into corevo.messages (id, thread_id, job_id, turn, part, role, text, status, created_at)
    values (corevo.uuid7(p_now), p_job.thread_id, p_job.id, p_job.turn, 1000, 'assistant', p_text, p_state, p_now);

  if p_job.blocked_by is not null then   -- a next job: the thread stays with its current one
    return null;
  end if;
  select j.id into v_next from corevo.jobs j
    where j.thread_id = p_job.thread_id and j.state = 'queued' and j.blocked_by is not null
    order by j.turn limit 1;
  update corevo.threads t set current_job_id = v_next, updated_at = p_now where t.id = p_job.thread_id;
  if v_next is not null then
    update corevo.jobs j set blocked_by = null, ready_at = p_now, waiting_since = p_now where j.id = v_next;
    update corevo.jobs j set blocked_by = v_next
      where j.thread_id = p_job.thread_id and j.state = 'queued' and j.blocked_by is not null;
  end if;
  return v_next;
end $$;
