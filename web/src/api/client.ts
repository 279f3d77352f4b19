import createClient from "openapi-fetch";
import { chooseLanguage, chosenLanguage, type Language } from "../lib/language";
import { reportAuthorized, reportReachable } from "./connection";
import type { paths } from "./schema.gen";

export const client = createClient<paths>({ baseUrl: "" });

let language: Language | null = null;

/** Asks for sentences in a language from now on, and remembers it. */
export function setLanguage(next: Language): void {
  language = next;
  chooseLanguage(next);
}

client.use({
  onRequest({ request }) {
    const wanted = language ?? chosenLanguage();
    if (wanted) request.headers.set("Accept-Language", wanted);
    return request;
  },
});

/** The server answered with a refusal (status 4xx or 5xx), or did not answer at all (status 0). */
export class ApiError extends Error {
  readonly status: number;
  /** What the server answered, for refusals that say more than a sentence. */
  readonly body: unknown;

  constructor(status: number, message: string, body: unknown = null) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.body = body;
  }

  /** Whether the same request may well succeed a little later. */
  get passing(): boolean {
    return this.status === 0 || this.status >= 500;
  }
}

interface Answer<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

/** Returns the answer's data. Throws an ApiError for everything else, and tells the page whether the server is there. */
export async function unwrap<T>(request: Promise<Answer<T>>): Promise<T> {
  let answer: Answer<T>;
  try {
    answer = await request;
  } catch (cause) {
    if (cause instanceof DOMException && cause.name === "AbortError") throw cause;
    reportReachable(false);
    throw new ApiError(0, "The server does not answer.");
  }
  const { data, error, response } = answer;
  // A proxy in front of a server that is away answers 502, 503 or 504 in its place.
  reportReachable(![502, 503, 504].includes(response.status));
  if (response.status === 401) reportAuthorized(false);
  if (!response.ok)
    throw new ApiError(response.status, detailOf(error) || `The server answered ${response.status}.`, error);
  return data as T;
}

function detailOf(error: unknown): string {
  if (typeof error !== "object" || error === null || !("detail" in error)) return "";
  return typeof error.detail === "string" ? error.detail : "";
}
