import { Button, PasswordInput } from "@mantine/core";
import { useDocumentTitle } from "@mantine/hooks";
import { type FormEvent, useState } from "react";
import { useLoginWays } from "../api/access";
import { useLogin } from "../api/session";
import { Logo } from "../components/Logo";
import { loginProblem } from "../lib/access";
import classes from "./LoginPage.module.css";

export function LoginPage() {
  useDocumentTitle("Log in · TrainWatch");
  const [token, setToken] = useState("");
  const login = useLogin();
  const { data: ways } = useLoginWays();
  const problem = loginProblem(window.location.search);

  function submit(event: FormEvent) {
    event.preventDefault();
    login.mutate(token.trim());
  }

  return (
    <form className={classes.card} onSubmit={submit} data-testid="login">
      <Logo size={36} />
      <h1 className={classes.title}>Log in to TrainWatch</h1>
      {problem && (
        <p className={classes.problem} role="alert">
          {problem}
        </p>
      )}
      {ways?.sso && (
        <>
          <Button
            component="a"
            href={`/api/login/oidc?to=${encodeURIComponent(window.location.pathname)}`}
            fullWidth
            data-testid="login-sso"
          >
            Log in with {ways.sso.name}
          </Button>
          <p className={classes.text}>Or with a token:</p>
        </>
      )}
      {ways && !ways.sso && (
        <p className={classes.text}>
          With a token that may read; whoever runs this server makes one under Settings, Access. It is started
          with one too: the value of <code>TRAINWATCH_TOKEN</code>.
        </p>
      )}
      <PasswordInput
        label="Token"
        value={token}
        onChange={(event) => setToken(event.currentTarget.value)}
        error={login.error?.message}
        autoComplete="current-password"
        data-autofocus
        autoFocus
        required
        withAsterisk={false}
        w="100%"
      />
      <Button
        type="submit"
        variant={ways?.sso ? "default" : "filled"}
        loading={login.isPending}
        disabled={token.trim() === ""}
        fullWidth
      >
        Log in
      </Button>
    </form>
  );
}
