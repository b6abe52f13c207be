"""Trains on Cloud TPU VMs, which queued resources provide."""
