import { Component, type ReactNode } from "react";
import { ErrorPane } from "./ErrorPane";

interface Props {
  /** A change of it (another page) is a new chance. */
  place: string;
  children: ReactNode;
}

interface State {
  error: Error | null;
  place: string;
}

/** Keeps a mistake of ours on one page from leaving a blank window. */
export class ErrorBoundary extends Component<Props, State> {
  override state: State = { error: null, place: this.props.place };

  static getDerivedStateFromError(error: unknown): Partial<State> {
    return { error: error instanceof Error ? error : new Error(String(error)) };
  }

  static getDerivedStateFromProps(props: Props, state: State): Partial<State> | null {
    return props.place === state.place ? null : { error: null, place: props.place };
  }

  override render() {
    const { error } = this.state;
    if (error === null) return this.props.children;
    return (
      <ErrorPane title="This page could not be drawn" onRetry={() => window.location.reload()}>
        The fault is TrainWatch's own; the data is safe, and training is not affected.{" "}
        <code>{error.message}</code>
      </ErrorPane>
    );
  }
}
