import { Skeleton } from "@mantine/core";
import type { ReactNode } from "react";
import { useSession } from "../api/access";
import { retryNow } from "../api/live";
import type { Session } from "../api/types";
import { ErrorPane } from "./ErrorPane";

/** Shows what depends on who is looking, once that is known. */
export function WithSession({ children }: { children: (session: Session) => ReactNode }) {
  const { data: session, error } = useSession();
  if (session) return children(session);
  if (error)
    return (
      <ErrorPane title="Who you are could not be found out" onRetry={retryNow}>
        {error.message}
      </ErrorPane>
    );
  return <Skeleton h={200} radius={8} />;
}
