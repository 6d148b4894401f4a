-- What a person has seen of a thread, for the marks of unread ones.
-- Threads of before count as seen: for them the column is null, which compares as nothing.

alter table corevo.threads add column seen_at timestamptz;  -- its updated_at when a page last showed it
alter table corevo.threads alter column seen_at set default '-infinity';
