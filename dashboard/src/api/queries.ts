import { keepPreviousData, QueryClient, useQuery, type UseQueryResult } from "@tanstack/react-query";
import { dropOpenInterval } from "../lib/series";
import { ask, coordinatorNowS } from "./fetch";
import type { Dashboard, DatasetDetail, Goodput, Series, StepTimes, Worker } from "./types";

// While the coordinator says when something is new, this is for the case that it cannot any more; what has not changed is
// answered with one header.
const NOW_MS = 1_500;
const SERIES_MS = 5_000;
const AUDIT_MS = 10_000;

/** The answers of one session; the next one begins without them. */
export function makeQueryClient(): QueryClient {
  return new QueryClient({
    defaultOptions: {
      queries: {
        // The next poll is the retry. A page that lies about being offline would be worse than one request too many.
        retry: false,
        networkMode: "always",
        refetchOnWindowFocus: true,
        staleTime: 500,
      },
    },
  });
}

export function useDashboard(job: string | null): UseQueryResult<Dashboard> {
  return useQuery({
    queryKey: ["dashboard", job],
    queryFn: ({ signal }) => ask<Dashboard>("dashboard", { job }, signal),
    refetchInterval: NOW_MS,
    placeholderData: keepPreviousData,
  });
}

export function useSeries(job: string | null, points = 300): UseQueryResult<Series> {
  return useQuery({
    queryKey: ["series", job, points],
    queryFn: async ({ signal }) => dropOpenInterval(await ask<Series>("series", { job, points }, signal), coordinatorNowS()),
    refetchInterval: SERIES_MS,
    enabled: job !== null,
  });
}

export function useStepTimes(job: string | null): UseQueryResult<StepTimes> {
  return useQuery({
    queryKey: ["step-times", job],
    queryFn: ({ signal }) => ask<StepTimes>("series/step-times", { job, limit: 1000 }, signal),
    refetchInterval: SERIES_MS,
    enabled: job !== null,
  });
}

export function useGoodput(job: string | null): UseQueryResult<Goodput> {
  return useQuery({
    queryKey: ["goodput", job],
    queryFn: ({ signal }) => ask<Goodput>("goodput", { job }, signal),
    refetchInterval: SERIES_MS,
    enabled: job !== null,
  });
}

export function useAudit(job: string | null, dataset: string, epoch: number | null): UseQueryResult<DatasetDetail> {
  return useQuery({
    queryKey: ["audit", job, dataset, epoch],
    queryFn: ({ signal }) => ask<DatasetDetail>(`datasets/${encodeURIComponent(dataset)}`, { job, epoch }, signal),
    refetchInterval: AUDIT_MS,
    enabled: job !== null,
  });
}

export function useWorker(job: string | null, worker: string | null): UseQueryResult<Worker> {
  return useQuery({
    queryKey: ["worker", job, worker],
    queryFn: ({ signal }) => ask<Worker>(`workers/${encodeURIComponent(worker ?? "")}`, { job }, signal),
    refetchInterval: NOW_MS,
    enabled: job !== null && worker !== null,
  });
}
