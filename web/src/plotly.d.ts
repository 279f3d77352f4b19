/** The little of plotly.js that this page uses. */
declare module "plotly.js-cartesian-dist-min" {
  export interface PlotElement extends HTMLElement {
    on(event: string, handler: (event: Record<string, unknown> | null) => void): void;
    removeAllListeners?(event: string): void;
  }
  export interface Plotly {
    react(element: HTMLElement, data: unknown[], layout: object, config: object): Promise<PlotElement>;
    purge(element: HTMLElement): void;
    Plots: { resize(element: HTMLElement): Promise<void> };
  }
  const plotly: Plotly;
  export default plotly;
}
