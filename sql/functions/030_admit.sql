-- Admission: one function, one transaction, all limits or none. A refusal raises, so that nothing of it stays.
--
-- Locks:   account → [days] → thread → unended jobs of the thread (by id) → [hold] → commands.
-- Raises:  RV101 not_found (account, thread) · RV102 agent_unknown · RV103 agent_unavailable · RV107 agent_required ·
--          RV104 idempotency_mismatch · RV105 thread_busy · RV106 thread_line_full · RV003 bad_call (p_on_busy).
-- Returns: outcome   queued | already_running | replaced | enqueued | steered; with a key the stored one, whatever the
--                    limits say now
--          job_id    the new job; with already_running and steered the current one
--          command_id  with steered: the input that the current run was given
--          epoch, token   set when p_worker took the job at once (local direct), else null
--          touched   other jobs whose state changed in this call
-- p_on_busy null: join for the same agent and input as the current job's, else replace. A current job that was asked to
--           stop is not joined, but the same thing next behind it is.
-- p_worker  asks for the local direct path: the worker keeps a free place (of lane normal) and takes the new job with
--           epoch 1 in this transaction, unless an older claimable job of the lane waits.
create or replace function corevo.admit(
  p_account uuid,
  p_text text,
  p_input json,
  p_metadata json,
  p_agent text,
  p_thread uuid,
  p_on_busy text,
  p_key text,
  p_body_hash text,
  p_next_limit int,
  p_worker uuid
) returns table (
  outcome text,
  job_id uuid,
  thread_id uuid,
  command_id uuid,
  epoch int,
  token uuid,
  lane text,
  touched uuid[]
) language plpgsql as $$
#variable_conflict use_column
declare
  v_now timestamptz;
  v_stored corevo.idempotency;
  v_thread corevo.threads;
  v_agent corevo.agents;
  v_served text[];
  v_fingerprint text;
  v_current corevo.jobs;
  v_join corevo.jobs;
  v_older corevo.jobs;
  v_on_busy text := p_on_busy;
  v_blocked_by uuid;
begin
  if p_on_busy not in ('join', 'replace', 'enqueue', 'reject', 'steer') then   -- or it would mean replace, which ends a run
    perform corevo.refuse('RV003', 'bad_call', format('on_busy %L is not known', p_on_busy));
  end if;
  -- identity
  perform 1 from corevo.accounts a where a.id = p_account for no key update;
  perform 1 from corevo.accounts a where a.id = p_account and a.disabled_at is null;
  if not found then
    perform corevo.refuse('RV101', 'not_found', 'no such account');
  end if;
  v_now := corevo.now();
  touched := '{}';
  -- (days: today's row and every row with a hold are locked here)

  -- idempotency key
  if p_key is not null then
    select i.* into v_stored from corevo.idempotency i where i.account_id = p_account and i.key = p_key;
    if found then
      if v_stored.body_hash <> p_body_hash then
        perform corevo.refuse('RV104', 'idempotency_mismatch', 'this Idempotency-Key was used with another body');
      end if;
      outcome := v_stored.outcome; job_id := v_stored.job_id; command_id := v_stored.command_id;
      select j.thread_id, j.lane into thread_id, lane from corevo.jobs j where j.id = v_stored.job_id;
      return next;
      return;
    end if;
  end if;

  -- agent known
  if p_agent is not null and not exists (select 1 from corevo.agents a where a.name = p_agent) then
    perform corevo.refuse('RV102', 'agent_unknown', format('no agent is called %L', p_agent));
  end if;

  -- thread: a foreign one is a missing one
  if p_thread is not null then
    perform 1 from corevo.threads t where t.id = p_thread and t.account_id = p_account for no key update;
    select t.* into v_thread from corevo.threads t where t.id = p_thread and t.account_id = p_account;
    if not found then
      perform corevo.refuse('RV101', 'not_found', 'no such thread');
    end if;
  end if;
  v_agent.name := coalesce(p_agent, v_thread.agent);
  if v_agent.name is null then
    v_served := array(select a.name from corevo.agents_served(60) a order by a.name);
    if cardinality(v_served) = 0 then
      perform corevo.refuse('RV103', 'agent_unavailable', 'no worker serves any agent at the moment');
    elsif cardinality(v_served) > 1 then
      perform corevo.refuse('RV107', 'agent_required', 'name one of: ' || array_to_string(v_served, ', '));
    end if;
    v_agent.name := v_served[1];
  end if;
  select a.* into v_agent from corevo.agents a where a.name = v_agent.name;
  lane := v_agent.lane;
  v_fingerprint := encode(sha256(convert_to(v_agent.name || chr(10) || p_input::text, 'UTF8')), 'hex');

  -- busy thread: join, steer and reject answer here, replace and enqueue go on
  if v_thread.current_job_id is not null then
    perform 1 from corevo.jobs j
      where j.thread_id = v_thread.id and j.state in ('queued', 'running')
      order by j.id for no key update;
    select j.* into v_current from corevo.jobs j where j.id = v_thread.current_job_id;
    v_join := v_current;
    if v_on_busy is null then
      v_on_busy := case when v_current.fingerprint = v_fingerprint then 'join' else 'replace' end;
      if v_current.cancel_requested_at is not null then
        -- it is on its way out and would swallow the message; but the same thing may stand behind it already
        select j.* into v_join from corevo.jobs j
          where j.thread_id = v_thread.id and j.state = 'queued' and j.blocked_by is not null and j.fingerprint = v_fingerprint
          order by j.turn desc limit 1;
        v_on_busy := case when v_join.id is not null then 'join' else 'replace' end;
      end if;
    end if;
    if v_on_busy = 'join' then
      outcome := 'already_running'; job_id := v_join.id; thread_id := v_thread.id;
      if p_key is not null then
        insert into corevo.idempotency (account_id, key, body_hash, outcome, job_id, created_at)
          values (p_account, p_key, p_body_hash, outcome, job_id, v_now);
      end if;
      return next;
      return;
    elsif v_on_busy = 'steer' then
      command_id := corevo.insert_command(v_current, 'input', json_build_object('text', p_text), v_now);
      outcome := 'steered'; job_id := v_current.id; thread_id := v_thread.id;
      if p_key is not null then
        insert into corevo.idempotency (account_id, key, body_hash, outcome, job_id, command_id, created_at)
          values (p_account, p_key, p_body_hash, outcome, job_id, command_id, v_now);
      end if;
      return next;
      return;
    elsif v_on_busy = 'reject' then
      perform corevo.refuse('RV105', 'thread_busy', 'a run of this thread is not finished');
    elsif v_on_busy = 'enqueue' then
      if (select count(*) from corevo.jobs j
            where j.thread_id = v_thread.id and j.state = 'queued' and j.blocked_by is not null) >= p_next_limit then
        perform corevo.refuse('RV106', 'thread_line_full', format('%s messages already wait in this thread', p_next_limit));
      end if;
    end if;
  end if;

  -- somebody must be there to run it
  if not exists (select 1 from corevo.agents_served(60) a where a.name = v_agent.name) then
    perform corevo.refuse('RV103', 'agent_unavailable', format('no worker has served %L for 60 s', v_agent.name));
  end if;

  -- (dedupe for clients that name no thread · depth of the lane · in-flight limit: here, only when the thread is free)
  -- (credits and the hold: here)

  -- thread
  if v_thread.id is null then
    insert into corevo.threads (id, account_id, title, created_at, updated_at)
      values (corevo.uuid7(v_now), p_account, corevo.title_of(p_text), v_now, v_now)
      returning * into v_thread;
  end if;
  outcome := 'queued';
  if v_current.id is not null then
    v_blocked_by := v_current.id;
    if v_on_busy = 'enqueue' then
      outcome := 'enqueued';
    else
      outcome := 'replaced';
      for v_older in
        select j.* from corevo.jobs j
          where j.thread_id = v_thread.id and j.state = 'queued' and j.blocked_by is not null
          order by j.turn
      loop
        perform corevo.end_job(v_older, 'cancelled', 'replaced', null, '', v_now);
        touched := touched || v_older.id;
      end loop;
      touched := touched || v_current.id;
      if v_current.execution_id is null then
        perform corevo.end_job(v_current, 'cancelled', 'replaced', null, corevo.job_text(v_current.id), v_now);
        v_blocked_by := null;
      elsif v_current.cancel_requested_at is null then
        update corevo.jobs j set cancel_requested_at = v_now where j.id = v_current.id;
        insert into corevo.commands (id, job_id, kind, requested_at)
          values (corevo.uuid7(v_now), v_current.id, 'cancel', v_now);
      end if;
    end if;
  end if;

  -- message and job
  job_id := corevo.uuid7(v_now);
  thread_id := v_thread.id;
  if p_worker is not null and v_blocked_by is null and v_agent.lane = 'normal'
     and exists (select 1 from corevo.workers w
                   where w.id = p_worker and w.fenced_at is null and w.draining_at is null and v_agent.name = any (w.agents))
     and not exists (select 1 from corevo.jobs j
                       where j.lane = v_agent.lane and j.state = 'queued' and j.blocked_by is null and j.worker_id is null
                         and j.ready_at <= v_now) then
    epoch := 1;
    token := gen_random_uuid();
  end if;
  insert into corevo.messages (id, thread_id, job_id, turn, part, role, text, created_at)
    values (corevo.uuid7(v_now), v_thread.id, job_id, v_thread.last_turn + 1, 1, 'user', p_text, v_now);
  insert into corevo.jobs (
      id, account_id, thread_id, turn, agent, lane, input, metadata, fingerprint, timeout_seconds, max_attempts,
      state, blocked_by, ready_at, waiting_since, worker_id, claimed_at, epoch, token, created_at)
    values (
      job_id, p_account, v_thread.id, v_thread.last_turn + 1, v_agent.name, v_agent.lane, p_input, p_metadata, v_fingerprint,
      v_agent.timeout_seconds, v_agent.max_attempts,
      'queued', v_blocked_by, v_now, v_now,
      case when token is not null then p_worker end, case when token is not null then v_now end, coalesce(epoch, 0), token, v_now);
  update corevo.threads t
    set last_turn = v_thread.last_turn + 1,
        agent = v_agent.name,
        title = case when t.title = '' then corevo.title_of(p_text) else t.title end,
        current_job_id = case when v_blocked_by is null then job_id else t.current_job_id end,
        updated_at = v_now
    where t.id = v_thread.id;
  if p_key is not null then
    insert into corevo.idempotency (account_id, key, body_hash, outcome, job_id, created_at)
      values (p_account, p_key, p_body_hash, outcome, job_id, v_now);
  end if;
  return next;
end $$;
