import "@mantine/core/styles.css";
import "./styles/fonts.css";
import "./styles/tokens.css";
import "./styles/base.css";
import { MantineProvider } from "@mantine/core";
import { QueryClientProvider } from "@tanstack/react-query";
import { useState } from "react";
import { Redirect, Route, Switch } from "wouter";
import { createQueryClient } from "./api/queries";
import { Shell } from "./components/Shell";
import { AccessPage } from "./pages/AccessPage";
import { AlertsPage } from "./pages/AlertsPage";
import { DataPage } from "./pages/DataPage";
import { NotFoundPage } from "./pages/NotFoundPage";
import { RulesPage } from "./pages/RulesPage";
import { RunPage } from "./pages/RunPage";
import { RunsPage } from "./pages/RunsPage";
import { cssVariables, theme } from "./theme";

export function App() {
  const [queries] = useState(createQueryClient);
  return (
    <MantineProvider theme={theme} cssVariablesResolver={cssVariables} defaultColorScheme="auto">
      <QueryClientProvider client={queries}>
        <Shell>
          <Switch>
            <Route path="/">
              <RunsPage />
            </Route>
            <Route path="/rules">
              <RulesPage name={null} />
            </Route>
            <Route path="/rules/:name">{({ name }) => <RulesPage name={name} />}</Route>
            <Route path="/settings">
              <Redirect to="/settings/access" replace />
            </Route>
            <Route path="/settings/alerts">
              <AlertsPage />
            </Route>
            <Route path="/settings/access">
              <AccessPage />
            </Route>
            <Route path="/settings/data">
              <DataPage />
            </Route>
            <Route path="/runs/:id">{({ id }) => <RunPage key={id} id={id} />}</Route>
            <Route>
              <NotFoundPage />
            </Route>
          </Switch>
        </Shell>
      </QueryClientProvider>
    </MantineProvider>
  );
}
