import { describe, expect, it } from "vitest";
import { formatEnd, howToUse, loginProblem, tokenState } from "./access";

describe("a token", () => {
  it("is valid until it expires or is revoked", () => {
    expect(tokenState({ expires_at: null, revoked_at: null }, 100)).toBe("valid");
    expect(tokenState({ expires_at: 101, revoked_at: null }, 100)).toBe("valid");
    expect(tokenState({ expires_at: 100, revoked_at: null }, 100)).toBe("expired");
    expect(tokenState({ expires_at: 101, revoked_at: 50 }, 100)).toBe("revoked");
  });

  it("says when it ends", () => {
    expect(formatEnd({ expires_at: null, revoked_at: null }, 100)).toBe("never");
    expect(formatEnd({ expires_at: null, revoked_at: 50 }, 100)).toMatch(/^revoked /);
  });

  it("comes with the lines to use it", () => {
    expect(howToUse("tw_a_b", ["ingest"], "vision", "https://tw")).toBe(
      "export TRAINWATCH_SERVER=https://tw\nexport TRAINWATCH_TOKEN=tw_a_b\nexport TRAINWATCH_PROJECT=vision",
    );
    expect(howToUse("tw_a_b", ["admin"], "", "https://tw")).not.toContain("PROJECT");
    expect(howToUse("tw_a_b", ["read"], "vision", "https://tw")).toContain("Authorization: Bearer tw_a_b");
  });
});

describe("a login that failed", () => {
  it("says why", () => {
    expect(loginProblem("")).toBeNull();
    expect(loginProblem("?login=nobody")).toContain("access");
    expect(loginProblem("?login=<b>")).toBe("The login did not work: try again.");
  });
});
