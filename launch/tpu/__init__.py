"""Cloud TPU VMs, by queued resources."""
