-- Input and answers reach a run between its message and its answer, so the answer moves to the end of its turn.

drop function if exists corevo.read_claims(uuid, uuid[], uuid[]);  -- it answers one column more now

update corevo.messages set part = 1000 where role = 'assistant' and part = 2;

-- prevents the same sentence twice: a consumed input becomes one message
alter table corevo.messages add column command_id uuid;
create unique index messages_of_command on corevo.messages (command_id) where command_id is not null;
