import { Button, PasswordInput } from "@mantine/core";
import { useDocumentTitle } from "@mantine/hooks";
import { type FormEvent, useState } from "react";
import { ApiError } from "../api/client";
import { useLogin } from "../api/session";
import { Logo } from "../components/Logo";
import classes from "./LoginPage.module.css";

export function LoginPage() {
  useDocumentTitle("Log in · TrainWatch");
  const [token, setToken] = useState("");
  const login = useLogin();
  const refused = login.error instanceof ApiError && login.error.status === 401;
  const problem = login.error ? (refused ? "This is not the server's token." : login.error.message) : null;

  function submit(event: FormEvent) {
    event.preventDefault();
    login.mutate(token.trim());
  }

  return (
    <form className={classes.card} onSubmit={submit} data-testid="login">
      <Logo size={36} />
      <h1 className={classes.title}>Log in to TrainWatch</h1>
      <p className={classes.text}>
        This server wants the token that it was started with: the value of <code>TRAINWATCH_TOKEN</code>.
      </p>
      <PasswordInput
        label="Token"
        value={token}
        onChange={(event) => setToken(event.currentTarget.value)}
        error={problem}
        autoComplete="current-password"
        data-autofocus
        autoFocus
        required
        withAsterisk={false}
        w="100%"
      />
      <Button type="submit" loading={login.isPending} disabled={token.trim() === ""} fullWidth>
        Log in
      </Button>
    </form>
  );
}
