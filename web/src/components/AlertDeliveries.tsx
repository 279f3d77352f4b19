import { Modal, Skeleton, Text } from "@mantine/core";
import { useAlertDeliveries } from "../api/channels";
import type { Alert } from "../api/types";
import { DeliveryTable } from "./DeliveryTable";

interface Props {
  run: string;
  alert: Alert;
  onClose: () => void;
}

/** Where an alert was told, and what became of it. */
export function AlertDeliveries({ run, alert, onClose }: Props) {
  const { data, error } = useAlertDeliveries(run, alert.id);
  return (
    <Modal opened onClose={onClose} title="Where this alert was told" size="xl" centered>
      <Text size="sm" mb="md">
        {alert.sentence}
      </Text>
      {error && !data ? (
        <Text size="sm" role="alert" style={{ color: "var(--tw-critical)" }}>
          {error.message}
        </Text>
      ) : !data ? (
        <Skeleton h={80} radius={8} />
      ) : data.length === 0 ? (
        <Text size="sm" data-testid="nowhere">
          Nowhere: no channel wanted to hear of it when it changed. Channels are set under Settings, Alerts.
        </Text>
      ) : (
        <DeliveryTable deliveries={data} shows="channel" />
      )}
    </Modal>
  );
}
