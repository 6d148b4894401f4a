// One job as its stream tells it: text, status, steps, usage, and how the job stands. Knows nothing of the page.

import { PlacedText } from "./text.js";

const TERMINAL = new Set(["completed", "failed", "cancelled", "interrupted", "timed_out", "lost"].map((s) => `run.${s}`));
export const UNENDED = new Set(["queued", "running"]);

export class Run {
  constructor(jobId, job = null) {
    this.id = jobId;
    this.job = job; // as the API shows it; null until the first word of it
    this.cursor = null;
    this.epoch = 0;
    this.execution = null;
    this.text = new PlacedText();
    this.replayUntil = 0; // for the painter: until when history may come
    this.heardAt = 0;
    this.stopWanted = false; // somebody pressed stop here, whether or not the server has heard it
    this.taken = new Map(); // command id → added sentence; what was taken stays so, whatever becomes of the attempt
    this.forget();
  }

  get ended() {
    return this.job !== null && !UNENDED.has(this.job.state);
  }

  forget() {
    this.cursor = null;
    this.seq = 0;
    this.text.reset();
    this.status = "";
    this.again = false; // an attempt ended, and another one follows
    this.steps = new Map();
    this.usage = null;
    this.questions = new Map(); // the open ones
  }

  /** Takes a frame of this job. */
  take(frame) {
    if (frame.ev === "job") this.job = frame.job;
    else if (frame.ev === "reset") frame.execution_id === this.execution && this.forget();
    else if (frame.ev === "event") this.event(frame);
  }

  event(frame) {
    if (frame.epoch < this.epoch || (frame.execution_id === this.execution && frame.seq <= this.seq)) return;
    if (frame.execution_id !== this.execution) {
      this.forget();
      this.execution = frame.execution_id;
      this.epoch = frame.epoch;
    }
    this.seq = frame.seq;
    const terminal = TERMINAL.has(frame.type);
    this.cursor = `${frame.execution_id}:${frame.seq}${terminal ? ":end" : ""}`;
    const data = frame.data ?? {};
    switch (frame.type) {
      case "text.delta":
        this.text.place(data.text, data.at);
        this.status = "";
        break;
      case "text.done":
        if (data.text !== this.text.text) this.text.reset(data.text);
        break;
      case "status":
        this.status = data.text;
        break;
      case "tool.started":
        this.steps.set(data.call_id ?? `${frame.seq}`, { name: data.name, with: brief(data.arguments), how: "running" });
        break;
      case "tool.finished": {
        const key = data.call_id ?? `${frame.seq}`;
        const step = this.steps.get(key) ?? { name: data.name, with: "" };
        this.steps.set(key, { ...step, how: data.ok === false ? "failed" : "done", said: data.ok === false ? brief(data.error) : "" });
        break;
      }
      case "usage":
        this.usage = add(this.usage, data);
        break;
      case "input.requested":
        this.questions.set(data.question_id, data);
        break;
      case "input.accepted":
        if (data.question_id) this.questions.delete(data.question_id);
        else this.taken.set(data.command_id, data.text);
        break;
      default:
        if (terminal) this.questions.clear();
        if (terminal && data.will_retry) this.again = true;
    }
  }
}

function brief(value) {
  if (value === undefined || value === null) return "";
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > 200 ? `${text.slice(0, 200)}…` : text;
}

function add(sum, more) {
  const total = sum ?? { input: 0, output: 0, cost: 0, model: "" };
  return {
    input: total.input + (more.input_tokens ?? 0),
    output: total.output + (more.output_tokens ?? 0),
    cost: total.cost + (more.cost_usd ?? 0),
    model: more.model ?? total.model,
  };
}
