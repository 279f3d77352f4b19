"""From the bytes of a shipment to rows: what happens when an agent ships."""
