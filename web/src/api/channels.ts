import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { client, unwrap } from "./client";
import { keys } from "./queries";
import type { Channel, ChannelRequest, Delivery } from "./types";

/** While a list of deliveries is shown; attempts are no news that the live stream tells. */
const REFRESH_MS = 4000;

/** The channels of a project; for null those that are told of all projects. */
export function useChannels(project: string | null) {
  return useQuery({
    queryKey: keys.channels(project),
    queryFn: async ({ signal }): Promise<Channel[]> => {
      const found =
        project === null
          ? await unwrap(client.GET("/api/admin/channels", { signal }))
          : await unwrap(
              client.GET("/api/projects/{project}/channels", { params: { path: { project } }, signal }),
            );
      return found.channels;
    },
    refetchInterval: REFRESH_MS * 2,
  });
}

/** Adds a channel, or changes the one with the id. */
export function useSaveChannel(project: string | null) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: ({ id, wish }: { id: number | null; wish: ChannelRequest }): Promise<Channel> => {
      if (project === null)
        return id === null
          ? unwrap(client.POST("/api/admin/channels", { body: wish }))
          : unwrap(
              client.PUT("/api/admin/channels/{channel}", { params: { path: { channel: id } }, body: wish }),
            );
      return id === null
        ? unwrap(
            client.POST("/api/projects/{project}/channels", { params: { path: { project } }, body: wish }),
          )
        : unwrap(
            client.PUT("/api/projects/{project}/channels/{channel}", {
              params: { path: { project, channel: id } },
              body: wish,
            }),
          );
    },
    onSuccess: () => queries.invalidateQueries({ queryKey: keys.channels(project) }),
  });
}

/** Removes a channel with the record of what it was told. */
export function useRemoveChannel(project: string | null) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: (channel: number) =>
      project === null
        ? unwrap(client.DELETE("/api/admin/channels/{channel}", { params: { path: { channel } } }))
        : unwrap(
            client.DELETE("/api/projects/{project}/channels/{channel}", {
              params: { path: { project, channel } },
            }),
          ),
    onSuccess: () => queries.invalidateQueries({ queryKey: keys.channels(project) }),
  });
}

/** Sends a test message now, and tells what happened. */
export function useTestChannel(project: string | null) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: (channel: number) =>
      project === null
        ? unwrap(client.POST("/api/admin/channels/{channel}/test", { params: { path: { channel } } }))
        : unwrap(
            client.POST("/api/projects/{project}/channels/{channel}/test", {
              params: { path: { project, channel } },
            }),
          ),
    onSettled: (_data, _error, channel) =>
      queries.invalidateQueries({ queryKey: keys.deliveries(project, channel) }),
  });
}

/** What a channel was told, the newest first. */
export function useDeliveries(project: string | null, channel: number) {
  return useQuery({
    queryKey: keys.deliveries(project, channel),
    queryFn: async ({ signal }): Promise<Delivery[]> => {
      const query = { limit: 20 };
      const found =
        project === null
          ? await unwrap(
              client.GET("/api/admin/channels/{channel}/deliveries", {
                params: { path: { channel }, query },
                signal,
              }),
            )
          : await unwrap(
              client.GET("/api/projects/{project}/channels/{channel}/deliveries", {
                params: { path: { project, channel }, query },
                signal,
              }),
            );
      return found.deliveries;
    },
    refetchInterval: REFRESH_MS,
  });
}

/** Where an alert of a run was told, the newest first. */
export function useAlertDeliveries(run: string, alert: number) {
  return useQuery({
    queryKey: keys.alertDeliveries(run, alert),
    queryFn: async ({ signal }): Promise<Delivery[]> => {
      const params = { path: { run, alert } };
      const found = await unwrap(client.GET("/api/runs/{run}/alerts/{alert}/deliveries", { params, signal }));
      return found.deliveries;
    },
    staleTime: 0,
    refetchInterval: REFRESH_MS,
  });
}

/** What nobody in a project wants to hear of. */
export function useSilences(project: string) {
  return useQuery({
    queryKey: keys.silences(project),
    queryFn: async ({ signal }) =>
      (
        await unwrap(
          client.GET("/api/projects/{project}/silences", { params: { path: { project } }, signal }),
        )
      ).silences,
  });
}

/** Silences rules or runs of a project; null hours are for ever. */
export function useAddSilence(project: string) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: (wish: { rule: string; run: string; reason: string; hours: number | null }) =>
      unwrap(client.POST("/api/projects/{project}/silences", { params: { path: { project } }, body: wish })),
    onSuccess: () => queries.invalidateQueries({ queryKey: keys.silences(project) }),
  });
}

/** Ends a silence of a project. */
export function useEndSilence(project: string) {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: (silence: number) =>
      unwrap(
        client.DELETE("/api/projects/{project}/silences/{silence}", {
          params: { path: { project, silence } },
        }),
      ),
    onSuccess: () => queries.invalidateQueries({ queryKey: keys.silences(project) }),
  });
}
