import { useDocumentTitle } from "@mantine/hooks";
import { Link } from "wouter";
import { ErrorPane } from "../components/ErrorPane";

export function NotFoundPage() {
  useDocumentTitle("Not found · TrainWatch");
  return (
    <ErrorPane title="There is no such page">
      The address leads nowhere. <Link href="/">All runs</Link> are one step away.
    </ErrorPane>
  );
}
