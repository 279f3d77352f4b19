/** Short names for the shapes of the OpenAPI document. */
import type { components } from "./schema.gen";

type Schemas = components["schemas"];

export type Alert = Schemas["Alert"];
export type AlertCounts = Schemas["AlertCounts"];
export type Autopsy = Schemas["Autopsy"];
export type Backtest = Schemas["Backtest"];
export type BacktestRun = Schemas["BacktestRun"];
export type Changed = Schemas["Changed"];
export type ChartInfo = Schemas["ChartInfo"];
export type Checkpoint = Schemas["Checkpoint"];
export type CurveDifference = Schemas["CurveDifference"];
export type DeviceInfo = Schemas["DeviceInfo"];
export type Difference = Schemas["Difference"];
export type End = Schemas["End"];
export type Headroom = Schemas["Headroom"];
export type NewToken = Schemas["NewToken"];
export type NonFiniteStep = Schemas["NonFiniteStep"];
export type OptionInfo = Schemas["OptionInfo"];
export type OptionValue = string | number | boolean;
export type OutOfMemory = Schemas["OutOfMemory"];
export type PhaseTotal = Schemas["PhaseTotal"];
export type RankInfo = Schemas["RankInfo"];
export type RuleInfo = Schemas["RuleInfo"];
export type RunDetail = Schemas["RunDetail"];
export type RunSummary = Schemas["RunSummary"];
export type Scope = Schemas["Session"]["scopes"][number];
export type SeriesInfo = Schemas["SeriesInfo"];
export type Session = Schemas["Session"];
export type SessionInfo = Schemas["SessionInfo"];
export type SetupDifference = Schemas["SetupDifference"];
export type Signal = Schemas["Signal"];
export type TensorInfo = Schemas["TensorInfo"];
export type TokenInfo = Schemas["TokenInfo"];
export type Trouble = Schemas["Trouble"];
