import { Component, type ReactNode } from "react";
import { Panel } from "../components/Panel";

interface FaultProps {
  children: ReactNode;
}

/** A mistake in one page is said in its place; the others, and the way to them, stay. */
export class Fault extends Component<FaultProps, { message: string | null }> {
  override state: { message: string | null } = { message: null };

  static getDerivedStateFromError(error: unknown): { message: string } {
    return { message: error instanceof Error ? error.message : String(error) };
  }

  override render(): ReactNode {
    if (this.state.message === null) return this.props.children;
    return (
      <Panel title="This page failed">
        <p role="alert">It is a mistake in the dashboard, not in the run: {this.state.message}.</p>
        <p className="muted">Other pages work. Reload to try this one again, and report it with the version at the lower left.</p>
      </Panel>
    );
  }
}
