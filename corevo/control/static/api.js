// HTTP calls. Whatever goes wrong becomes a Problem with a stable code.

const PATIENCE_MS = 15_000;

export class Problem extends Error {
  constructor(code, detail, status = 0, retryAfterSeconds = null) {
    super(detail || code);
    this.code = code;
    this.detail = detail;
    this.status = status;
    this.retryAfterSeconds = retryAfterSeconds;
  }
}

export async function api(method, path, body) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(PATIENCE_MS),
      cache: "no-store",
    });
    if (answer.status === 204) return null;
    const value = await answer.json();
    if (answer.ok) return value;
    throw new Problem(value.code ?? "other", value.detail ?? "", answer.status, value.retry_after_seconds ?? null);
  } catch (error) {
    if (error instanceof Problem) throw error;
    throw new Problem("unreachable", answer ? `${answer.status}` : "");
  }
}
