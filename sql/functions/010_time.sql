-- The one clock of the protocol. A test database replaces this function; no setting of the product can.
create or replace function corevo.now()
returns timestamptz language sql volatile as $$ select clock_timestamp() $$;

-- A version 7 UUID of the given time: 48 bits of milliseconds, then random bits. (uuidv7() exists only from Postgres 18.)
create or replace function corevo.uuid7(p_now timestamptz)
returns uuid language sql volatile as $$
  select encode(set_byte(
           overlay(uuid_send(gen_random_uuid())
                   placing substring(int8send(floor(extract(epoch from p_now) * 1000)::bigint) from 3) from 1 for 6),
           6, 112 | (get_byte(uuid_send(gen_random_uuid()), 6) & 15)), 'hex')::uuid
$$;

-- The smallest execution id of a moment: the border between two day partitions.
create or replace function corevo.uuid7_floor(p_at timestamptz)
returns uuid language sql immutable as $$
  select (lpad(to_hex(floor(extract(epoch from p_at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

-- Raises a refusal. The message is the stable code that the API shows, the detail is for people.
-- SQLSTATEs are listed in sql/README.md.
create or replace function corevo.refuse(
  p_sqlstate text,
  p_code text,
  p_detail text default null
) returns void language plpgsql as $$
begin
  raise exception using errcode = p_sqlstate, message = p_code, detail = coalesce(p_detail, '');
end $$;
